//! The daemon's process: arguments, logging, sockets, runtime, exit code.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::CommandFactory;
use tinygptd::config::{self, Args, Command, Config, ServeArgs};
use tinygptd::exit::{Exit, OutputError, Usage};
use tinygptd::install::{self, Installation, Places, Supervisor};
use tinygptd::log;
use tinygptd::service::{self, LogFilter};
use tinygptd::store::{self, StoreHandle, StoreThreads};
use tinygptd::sys::socket::{self, SocketFile};
use tinygptd::sys::supervisor;
use tokio::signal::unix::{Signal, SignalKind, signal};

fn main() -> ExitCode {
    // Takes descriptors out of the environment: before any thread.
    let inherited = supervisor::inherited_listeners();
    let ended = match Args::read(std::env::args_os()) {
        Ok(Args { command: Some(command), .. }) => obey(command),
        Ok(args) => inherited.context("cannot use inherited sockets").and_then(|s| start(args, s)),
        Err(said) => explain(&said),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => {
            // Nobody is left to tell when that fails.
            let _ =
                writeln!(io::stderr(), "tinygptd: {}", log::spelled(&format_args!("{error:#}")));
            Exit::of(&error).into()
        }
    }
}

/// Help goes to stdout, mistakes to stderr.
fn explain(said: &clap::Error) -> anyhow::Result<Exit> {
    let printed = said.print();
    if said.use_stderr() {
        return Ok(Exit::Usage);
    }
    readable(printed)?;
    Ok(Exit::Done)
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
    survive_size_limits().context("cannot listen for signals")?;
    Ok(async move {
        signals.next().await;
        std::thread::spawn(end_at_next_signal);
    })
}

/// A write beyond a limit of the process on the size of files then fails like one on a full disk:
/// the signal that comes with it ends a process that does not listen.
fn survive_size_limits() -> std::io::Result<()> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
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
    let filter = service::log_filter(&config.log)
        .with_context(|| format!("cannot use log filter {:?}", config.log))
        .map_err(Usage)?;
    Ok(log::start(filter, config.log_format))
}

fn obey(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Config(args) => print(Config::print(args)?.as_bytes())?,
        Command::Install(args) => apply(installation(args)?.install(Supervisor::native()))?,
        Command::Uninstall => {
            let places =
                Places::of_this_user().context("cannot find the service").map_err(Usage)?;
            apply(places.uninstall(Supervisor::native()))?;
        }
        Command::PrintPlist(args) => print(installation(args)?.plist().as_bytes())?,
        Command::Man { dir } => clap_mangen::generate_to(Args::command(), &dir)
            .with_context(|| format!("cannot write manual pages into {}", dir.display()))?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "tinygptd", &mut script);
            print(&script)?;
        }
    }
    Ok(Exit::Done)
}

/// This daemon, with these flags, for this user.
fn installation(args: ServeArgs) -> anyhow::Result<Installation> {
    let config = Config::resolve(args.clone())?;
    let installation = Installation::of_this_user(&args, config.socket.path());
    Ok(installation.context("cannot describe the service").map_err(Usage)?)
}

/// Tells what is done to the system. Nobody listening is no reason to leave it half done.
fn apply(actions: Vec<install::Action>) -> anyhow::Result<()> {
    let mut told = Ok(());
    install::apply(actions, install::run, |action| {
        if told.is_ok() {
            told = print(format!("{action}\n").as_bytes());
        }
    })?;
    Ok(told?)
}

fn print(bytes: &[u8]) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    readable(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// What became of writing to stdout. A reader that has gone has read what it wanted.
fn readable(written: io::Result<()>) -> Result<(), OutputError> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(OutputError(error)),
        _ => Ok(()),
    }
}
