//! The daemon's process: arguments, logging, sockets, runtime, exit code.

use std::io::IsTerminal;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::CommandFactory;
use tinygptd::config::{self, Args, Command, Config, LogFormat, ServeArgs};
use tinygptd::exit::{Exit, Usage};
use tinygptd::install::{self, Installation, Places, Supervisor};
use tinygptd::service::LogFilter;
use tinygptd::store::{self, StoreHandle, StoreThreads};
use tinygptd::sys::socket::{self, SocketFile};
use tinygptd::sys::supervisor;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

fn main() -> ExitCode {
    // Takes descriptors out of the environment: before any thread.
    let inherited = supervisor::inherited_listeners();
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => {
            // Help goes to stdout, errors to stderr; nobody is left to tell when that fails.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    let ended = match args {
        Args { command: Some(command), .. } => obey(command),
        args => inherited.context("cannot use inherited sockets").and_then(|s| start(args, s)),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("tinygptd: {error:#}");
            Exit::of(&error).into()
        }
    }
}

fn start(args: Args, inherited: Vec<UnixListener>) -> anyhow::Result<Exit> {
    let config = Config::resolve(args.serve)?;
    let logs = log(&config)?;
    if args.self_check {
        let (store, _threads) = open_store(&config, config.socket.path())?;
        let nothing = || Usage(anyhow!("nothing is persisted, so there is nothing to check"));
        return tinygptd::self_check::run(&config, &store.ok_or_else(nothing)?);
    }
    let (listeners, _file) = listen(&config, inherited)?;
    let address = listeners.first().and_then(socket::address);
    let (store, _threads) = open_store(&config, &address.unwrap_or_default())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let shutdown = shutdown()?;
        tinygptd::run(config, listeners, store, Some(logs), shutdown).await
    })
}

/// The supervisor's sockets, else one of our own, whose file goes when the daemon ends.
fn listen(
    config: &Config,
    inherited: Vec<UnixListener>,
) -> anyhow::Result<(Vec<UnixListener>, Option<SocketFile>)> {
    if !inherited.is_empty() {
        return Ok((inherited, None));
    }
    config.socket.prepare()?;
    let path = config.socket.path();
    let (listener, file) = socket::bind(path)?;
    tracing::info!(socket = %path.display(), "listening");
    Ok((vec![listener], Some(file)))
}

/// The disk tier, if there is one, whose lock tells others that this daemon is at `socket`.
fn open_store(
    config: &Config,
    socket: &Path,
) -> anyhow::Result<(Option<StoreHandle>, Option<StoreThreads>)> {
    let Some(settings) = config.store.clone() else { return Ok((None, None)) };
    let settings = store::Settings { socket: socket.to_owned(), ..settings };
    config::prepare_default_cache(&settings.dir)?;
    let (handle, threads) = store::open(settings)?;
    Ok((Some(handle), Some(threads)))
}

/// Ends at the first signal that asks the daemon to end; the second ends the process on the spot.
fn shutdown() -> anyhow::Result<impl Future<Output = ()>> {
    let mut signals = Signals::new().context("cannot listen for signals")?;
    Ok(async move {
        signals.next().await;
        std::thread::spawn(end_at_next_signal);
    })
}

/// On a thread and a runtime of its own: the daemon's may be gone by then, while `main` waits for
/// a thread that waits for a disk.
fn end_at_next_signal() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        Signals::new()?.next().await;
        std::process::exit(Exit::Done.code().into())
    })
}

/// What asks a daemon to end: a supervisor, Ctrl-C, and the terminal it was started from.
struct Signals([Signal; 3]);

impl Signals {
    /// Needs a runtime.
    fn new() -> std::io::Result<Self> {
        let [terminate, interrupt, hang_up] =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        Ok(Self([terminate?, interrupt?, hang_up?]))
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

fn log(config: &Config) -> anyhow::Result<LogFilter> {
    let filter = EnvFilter::try_new(&config.log)
        .with_context(|| format!("cannot use log filter {:?}", config.log))
        .map_err(Usage)?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = match config.log_format {
        LogFormat::Json => fmt::layer().json().with_writer(std::io::stderr).boxed(),
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            fmt::layer().with_ansi(colours).with_writer(std::io::stderr).boxed()
        }
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(handle)
}

#[expect(clippy::print_stdout, reason = "these commands exist to print")]
fn obey(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Config(args) => print!("{}", Config::print(args)?),
        Command::Install(args) => apply(installation(args)?.install(Supervisor::native()))?,
        Command::Uninstall => {
            let places = Places::of_this_user().context("cannot find the service")?;
            apply(places.uninstall(Supervisor::native()))?;
        }
        Command::PrintPlist(args) => print!("{}", installation(args)?.plist()),
        Command::Man => clap_mangen::Man::new(Args::command()).render(&mut std::io::stdout())?,
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Args::command(),
                "tinygptd",
                &mut std::io::stdout(),
            );
        }
    }
    Ok(Exit::Done)
}

/// This daemon, with these flags, for this user.
fn installation(args: ServeArgs) -> anyhow::Result<Installation> {
    let config = Config::resolve(args.clone())?;
    Installation::of_this_user(&args, config.socket.path()).context("cannot describe the service")
}

#[expect(clippy::print_stdout, reason = "the user sees what is done to the system")]
fn apply(actions: Vec<install::Action>) -> anyhow::Result<()> {
    install::apply(actions, install::run, |action| println!("{action}"))?;
    Ok(())
}
