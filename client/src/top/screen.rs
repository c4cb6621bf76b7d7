//! The terminal: taken when the view begins, given back whenever and however it ends.

use std::io;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::style::Style;
use ratatui::text::{self, Span};
use ratatui::widgets::Paragraph;
use ratatui::{Frame, Terminal};
use tinygpt_client::exit::Exit;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::feed::{self, Heard};
use super::picture::{self, Line, Look};
use super::view::View;
use crate::failure::{Failure, Outcome};
use crate::session::Session;

/// How often the thread that reads keys looks whether anybody wants them.
const GLANCE: Duration = Duration::from_millis(100);

/// What somebody at the terminal wants.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Interrupt,
    Pause,
    Faster,
    Slower,
    /// The terminal has another size, or the like: draw again.
    Look,
}

pub(super) async fn run(every: Duration, session: &Session) -> Outcome {
    let [mut terminated, mut hung_up] =
        [signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    let mut taken = Taken::take()?;
    let (mut view, mut keys) = (View::new(every), keys()?);
    let socket = session.socket.path().to_owned();
    let mut feed = feed::listen(socket.clone(), every);
    loop {
        taken.terminal.draw(|frame| show(frame, &view))?;
        tokio::select! {
            heard = feed.recv() => match heard {
                Some(Heard::Told(told)) => view.hear(*told),
                Some(Heard::Gone(why)) => view.lose(why),
                None => feed = feed::listen(socket.clone(), view.every),
            },
            wish = keys.recv() => match wish {
                Some(Wish::Quit) | None => return Ok(Exit::Done),
                Some(Wish::Interrupt) => return Err(Failure::Interrupted),
                Some(Wish::Pause) => view.paused = !view.paused,
                Some(wish @ (Wish::Faster | Wish::Slower)) => {
                    view.hurry(wish == Wish::Faster);
                    feed = feed::listen(socket.clone(), view.every);
                }
                Some(Wish::Look) => {}
            },
            _ = terminated.recv() => return Ok(Exit::Done),
            _ = hung_up.recv() => return Ok(Exit::Done),
        }
    }
}

/// As much as there is room for, from the top.
fn show(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let lines = picture::fitting(view, area.width.into(), area.height.into());
    let lines: Vec<_> = lines.into_iter().map(styled).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn styled(line: Line) -> text::Line<'static> {
    let spans = line.0.into_iter().map(|(look, words)| Span::styled(words, style(look)));
    spans.collect::<Vec<_>>().into()
}

fn style(look: Look) -> Style {
    match look {
        Look::Plain => Style::new(),
        Look::Title => Style::new().bold(),
        Look::Faint => Style::new().dim(),
        Look::Good => Style::new().green(),
        Look::Half => Style::new().yellow(),
        Look::Bad => Style::new().red(),
        Look::Special => Style::new().cyan(),
    }
}

/// A terminal in raw mode on its other screen.
struct Taken {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
}

impl Taken {
    fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        enable_raw_mode()?;
        // From here on what is dropped gives back.
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        let taken = Self { terminal: terminal.inspect_err(|_| give_back())? };
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Whatever cannot be done is nothing that could be said.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Keys as they are pressed, until nobody wants them: read on a thread, since reading waits.
fn keys() -> io::Result<mpsc::Receiver<Wish>> {
    let (pressed, keys) = mpsc::channel(16);
    std::thread::Builder::new().name("keys".into()).spawn(move || {
        while !pressed.is_closed() {
            let wish = match event::poll(GLANCE) {
                Ok(false) => continue,
                Ok(true) => event::read().ok().and_then(|event| wish(&event)),
                Err(_) => return,
            };
            if wish.is_some_and(|wish| pressed.blocking_send(wish).is_err()) {
                return;
            }
        }
    })?;
    Ok(keys)
}

fn wish(event: &Event) -> Option<Wish> {
    let key = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        Event::Resize(..) => return Some(Wish::Look),
        _ => return None,
    };
    match key.code {
        // Raw mode makes a key of it.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(Wish::Interrupt)
        }
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('p' | ' ') => Some(Wish::Pause),
        KeyCode::Char('+' | '=') => Some(Wish::Faster),
        KeyCode::Char('-') => Some(Wish::Slower),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
