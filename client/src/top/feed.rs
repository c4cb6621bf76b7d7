//! What the daemon tells, for as long as somebody listens; again when it was gone.

use std::path::PathBuf;
use std::time::Duration;

use tinygpt_client::connect::Connection;
use tinygpt_proto::v1::{WatchRequest, WatchResponse};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// How long to wait before another look for a daemon that was not there.
const AGAIN: Duration = Duration::from_millis(500);

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// What goes on.
    Told(Box<WatchResponse>),
    /// Nothing, and why.
    Gone(String),
}

/// Listens until what is returned is dropped.
pub(super) fn listen(socket: PathBuf, every: Duration) -> mpsc::Receiver<Heard> {
    let (ear, heard) = mpsc::channel(1);
    tokio::spawn(async move {
        while !ear.is_closed() {
            let why = follow(&socket, every, &ear).await;
            if ear.send(Heard::Gone(why)).await.is_err() {
                return;
            }
            tokio::select! {
                () = sleep(AGAIN) => {}
                () = ear.closed() => return,
            }
        }
    });
    heard
}

/// Hears one daemon until it is gone, and why it is.
async fn follow(socket: &std::path::Path, every: Duration, ear: &mpsc::Sender<Heard>) -> String {
    let connection = match Connection::open_path(socket).await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    let interval = every.try_into().ok();
    let mut told = match connection.admin().watch(WatchRequest { interval }).await {
        Ok(told) => told.into_inner(),
        Err(status) => return status.message().to_owned(),
    };
    loop {
        let message = tokio::select! {
            message = told.message() => message,
            () = ear.closed() => return String::new(),
        };
        match message {
            Ok(Some(told)) => {
                if ear.send(Heard::Told(Box::new(told))).await.is_err() {
                    return String::new();
                }
            }
            Ok(None) => return "the daemon has ended".to_owned(),
            Err(status) => return status.message().to_owned(),
        }
    }
}
