//! `cargo demo`: shows the address of the live page, fetches servers while cargo builds demo and daemon, and becomes
//! the demo.
//!
//! Cargo runs an alias only after it has built the program. This one needs few crates, so it runs early; the demo with
//! the daemon needs ten times as many. Both builds share them.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use anabranch_stack::{Layout, Options, PAGE_PORT_VARIABLE, ServerSpec, cargo_build, fetch};

const DEMO: &str = "anabranch-demo";
/// Program of the product, which the demo finds built.
const DAEMON: &str = "anabranch";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Err(error) = run(&arguments);
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn run(arguments: &[OsString]) -> Result<Infallible, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let mut demo = Command::new(program.with_file_name(DEMO));
    demo.args(arguments);
    let Some(servers) = servers(arguments) else {
        build()?;
        return Err(become_demo(&mut demo));
    };
    // The port is held until the demo takes it.
    let page = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|page| Ok((page.local_addr()?, page)));
    let (address, _page) = page.map_err(|error| format!("no port of 127.0.0.1 is free: {error}"))?;
    eprintln!("the live page is at http://{address}/ as soon as the daemon runs");
    let layout = Layout::find().map_err(|error| error.to_string())?;
    eprintln!("building demo and daemon, and fetching servers meanwhile ...");
    let fetching = thread::spawn(move || fetch(&layout, &servers));
    let built = build();
    // After a failed build, too, programs of the fetch would otherwise work on without the lock of their installation.
    if let Ok(Err(error)) = fetching.join() {
        // The demo tries again, and says then what is missing.
        eprintln!("note: {error}");
    }
    built?;
    demo.env(PAGE_PORT_VARIABLE, address.port().to_string());
    Err(become_demo(&mut demo))
}

/// Builds demo and daemon at once.
fn build() -> Result<(), String> {
    let mut cargo = cargo_build(&[DAEMON, DEMO]);
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo ended with {status}; its messages are above")),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// Replaces this process; returns only the reason why that did not work.
fn become_demo(demo: &mut Command) -> String {
    let error = demo.exec();
    format!("{} cannot be run: {error}", Path::new(demo.get_program()).display())
}

/// Returns the servers that the demo will need, or `None` when it only prints its help. A wrong guess costs time and
/// nothing else: the demo looks for all its programs by itself.
fn servers(arguments: &[OsString]) -> Option<Vec<ServerSpec>> {
    let has = |wanted: &str| arguments.iter().any(|argument| argument == OsStr::new(wanted));
    if ["-h", "--help", "-V", "--version"].into_iter().any(has) {
        return None;
    }
    let databases = match (has("--mysql"), has("--mariadb")) {
        (true, _) => Options::mysql(),
        (false, true) => Options::mariadb_11(),
        (false, false) => Options::standard(),
    };
    let options = databases.with(ServerSpec::redis("redis"));
    let options = if has("--without-search") { options } else { options.with(ServerSpec::search("search")) };
    Some(options.servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_the_arguments_are_fetched() {
        let names = |arguments: &[&str]| {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let servers = servers(&arguments)?;
            Some(servers.into_iter().map(|server| server.name).collect::<Vec<_>>())
        };
        let standard = ["source-a", "source-b", "target", "nats", "redis"].map(str::to_owned).to_vec();
        assert_eq!(names(&["--without-search"]), Some(standard.clone()));
        assert_eq!(names(&["--flux", "5"]), Some([standard, vec!["search".to_owned()]].concat()));
        assert_eq!(names(&["--seconds", "5", "--help"]), None);
        let mysql = [OsString::from("--mysql")];
        assert_eq!(servers(&mysql).unwrap()[..4], Options::mysql().servers[..]);
    }
}
