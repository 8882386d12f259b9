//! `cargo stack`: the development stack on the command line.
//!
//! `up` leaves the servers running in the background until `down`. The other commands also work on the instance of a
//! running demo or test (`--instance`), whose servers still end with it.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use anabranch_stack::{
    Layout, Options, Result, Server, ServerSpec, ServerStatus, Stack, StackError, instance_names,
};
use clap::{Parser, Subcommand};

/// Development stack: real MariaDB, MySQL, NATS, Redis and OpenSearch servers on private ports of 127.0.0.1
#[derive(Parser)]
#[command(name = "stack", bin_name = "cargo stack")]
struct Arguments {
    /// Name of the stack; several can run side by side
    #[arg(long, global = true, default_value = "default")]
    instance: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start servers; what runs already stays as it is
    Up {
        /// source-a, source-b, target (MariaDB), nats, redis, search (OpenSearch), which are all without names;
        /// mariadb-11-source, mariadb-11-target, mysql-source, mysql-target
        servers: Vec<String>,
    },
    /// Stop all servers and remove their data
    Down,
    /// Show servers, ports and logs of all stacks in this checkout
    Status,
    /// Print ANABRANCH_<SERVER>_URL=... lines with passwords
    Env,
    /// End a server with SIGKILL
    Kill { name: String },
    /// Stop a server if it runs, and start it with the same data and port
    Restart { name: String },
    /// End a server with SIGKILL, and start it without any data
    Wipe { name: String },
    /// Freeze a server (SIGSTOP)
    Pause { name: String },
    /// Let a frozen server go on (SIGCONT)
    Resume { name: String },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("error: {error}");
            let mut cause = error.source();
            while let Some(inner) = cause {
                text.push_str(&format!("\n  because: {inner}"));
                cause = inner.source();
            }
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let layout = Layout::find()?;
    let instance = arguments.instance.as_str();
    let open = || Stack::open(&layout, instance);
    match arguments.command {
        Command::Up { servers } => {
            let started = Instant::now();
            let stack = Stack::up(&layout, instance, chosen(instance, &servers)?)?;
            print_servers(&stack);
            println!("up after {:.1} s", started.elapsed().as_secs_f64());
        }
        Command::Down => open()?.down()?,
        Command::Status => {
            for name in instance_names(&layout)? {
                if let Ok(stack) = Stack::open(&layout, &name) {
                    print_servers(&stack);
                }
            }
        }
        Command::Env => {
            for (variable, value) in open()?.env() {
                println!("{variable}={value}");
            }
        }
        Command::Kill { name } => open()?.server(&name)?.kill()?,
        Command::Restart { name } => open()?.server(&name)?.restart()?,
        Command::Wipe { name } => open()?.server(&name)?.restart_empty()?,
        Command::Pause { name } => open()?.server(&name)?.pause()?,
        Command::Resume { name } => open()?.server(&name)?.resume()?,
    }
    Ok(())
}

/// Returns the servers of these names; without names, all servers that every machine can have.
fn chosen(instance: &str, names: &[String]) -> Result<Vec<ServerSpec>> {
    let unnamed = Options::everything();
    if names.is_empty() {
        return Ok(unnamed.servers);
    }
    let further = [
        ServerSpec::mariadb_11_source("mariadb-11-source"),
        ServerSpec::mariadb_11_target("mariadb-11-target"),
        ServerSpec::mysql_source("mysql-source"),
        ServerSpec::mysql_target("mysql-target"),
    ];
    let mut all = further.into_iter().fold(unnamed, Options::with).servers;
    let known: Vec<String> = all.iter().map(|server| server.name.clone()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        let (instance, name) = (instance.to_owned(), name.clone());
        return Err(StackError::ServerUnknown { instance, name, known: known.join(", ") });
    }
    all.retain(|server| names.contains(&server.name));
    Ok(all)
}

fn print_servers(stack: &Stack) {
    println!("stack {}", stack.name());
    for server in stack.servers() {
        println!(
            "  {:<12} {:<8} 127.0.0.1:{:<6} pid {:<8} {}",
            server.name(),
            word(server.status()),
            server.port(),
            pid(&server),
            server.log_file().display()
        );
    }
}

fn word(status: ServerStatus) -> &'static str {
    match status {
        ServerStatus::Running => "running",
        ServerStatus::Paused => "paused",
        ServerStatus::Stopped => "stopped",
    }
}

fn pid(server: &Server) -> String {
    server.pid().map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}
