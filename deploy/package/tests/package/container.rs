//! An image of the package: built by buildah, run by buildah and by podman, with a read-only root and without rights.
//!
//! Images of this test have a folder of their own. A machine without these programs, or that cannot download the
//! Debian packages, or whose kernel lets podman start no container, prints `skipped:`. Any other failure is one of the
//! image.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anabranch_demo::daemon::free_port;

use crate::{EXAMPLE, Unpacked, empty_folder, has, succeed, unpacked};

const IMAGE: &str = "localhost/anabranch:test";
const CONTAINER: &str = "anabranch-test";
/// Limit of a daemon's start in a container, on a busy machine too.
const START_MAX: Duration = Duration::from_secs(60);
/// Exit code of the build on a machine that has no buildah or cannot download packages.
const NOT_HERE: i32 = 3;
/// Exit codes with which podman says that it, or the kernel under it, has started no container.
const NOT_STARTED: [i32; 2] = [125, 126];
const PROGRAM: &str = "/usr/bin/anabranch";
/// Runs podman where the machine has control groups of both versions, of which its runtime accepts one alone.
const PODMAN: &str = "mount --make-rprivate / || exit 125\n\
    if [ -d /sys/fs/cgroup/unified ]; then mount -t cgroup2 none /sys/fs/cgroup || exit 125; fi\n\
    exec podman --cgroup-manager cgroupfs --events-backend file \"$@\"\n";
/// Options with which podman starts a container on a kernel that lets it neither raise limits nor make control groups.
const STARTED: [&str; 7] = [
    "--read-only",
    "--cgroups=disabled",
    "--network=host",
    "--ulimit",
    "nofile=1024:1024",
    "--ulimit",
    "nproc=4096:4096",
];
/// A configuration of servers that are not there: the daemon waits for them.
const CONFIGURATION: &str = r#"
name = "anabranch"
[log]
url = "nats://127.0.0.1:1"
[[entities]]
entity = "user"
tables = "user_{db:02}.user_{table:03}"
[[sources]]
name = "a"
url = "mysql://u:p@127.0.0.1:1"
[[targets]]
name = "t"
url = "mysql://u:p@127.0.0.1:1"
[[projections]]
name = "birthday"
kind = "birthday"
targets = ["t"]
layout = "by_day"
databases = 1
database = "birthday_{db}"
table = "birthday_{mmdd}"
"#;

/// The storage of this test's image.
struct Storage {
    folder: PathBuf,
    conf: PathBuf,
}

/// A container of podman; dropping it removes the container.
struct Started<'s> {
    storage: &'s Storage,
    podman: Child,
}

impl Storage {
    /// Builds the image of the package; `None` after a line that says why there is none.
    fn with_image(package: &Path) -> Option<Self> {
        let folder = empty_folder("image");
        let conf = folder.join("storage.conf");
        let (graph, run) = (folder.join("graph"), folder.join("run"));
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            graph.display(),
            run.display()
        );
        fs::write(&conf, storage).unwrap();
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../container/build");
        let mut build = Command::new(build);
        build.arg(package).arg(IMAGE).env("CONTAINERS_STORAGE_CONF", &conf);
        build.env("BUILDAH_OPTIONS", "--isolation chroot");
        let built = build.output().unwrap();
        let reason = String::from_utf8_lossy(&built.stderr).into_owned();
        if built.status.code() == Some(NOT_HERE) {
            println!("skipped: no image can be built here: {reason}");
            return None;
        }
        assert!(built.status.success(), "no image was built ({}): {reason}", built.status);
        Some(Self { folder, conf })
    }

    fn buildah(&self, arguments: &[&str]) -> String {
        let mut buildah = Command::new("buildah");
        succeed(buildah.args(arguments).env("CONTAINERS_STORAGE_CONF", &self.conf)).trim().to_owned()
    }

    fn podman(&self, arguments: &[&str]) -> Command {
        let mut podman = Command::new("unshare");
        podman.args(["--mount", "sh", "-e", "-c", PODMAN, "sh"]).args(arguments);
        podman.env("CONTAINERS_STORAGE_CONF", &self.conf);
        podman
    }

    /// Runs a command in the running container.
    fn inside(&self, user: &str, arguments: &[&str]) -> Output {
        let mut podman = self.podman(&["exec", "--user", user, CONTAINER, PROGRAM]);
        podman.args(arguments).output().unwrap()
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        _ = self.storage.podman(&["rm", "--force", CONTAINER]).output();
        _ = self.podman.kill();
        _ = self.podman.wait();
    }
}

#[test]
fn an_image_of_the_package_runs_without_rights_on_a_read_only_root() {
    let Some(unpacked) = unpacked() else { return };
    let needed = [("buildah", "--version"), ("apt-get", "--version"), ("unshare", "--version")];
    if !needed.iter().all(|(program, argument)| has(program, &[*argument]))
        || !has("unshare", &["--mount", "true"])
    {
        return;
    }
    let Some(storage) = Storage::with_image(&unpacked.package) else { return };
    buildah_runs_it(&storage, unpacked);
    if has("podman", &["--version"]) {
        podman_runs_it(&storage);
    }
    fs::remove_dir_all(&storage.folder).unwrap();
}

fn buildah_runs_it(storage: &Storage, unpacked: &Unpacked) {
    let container = storage.buildah(&["from", "--pull-never", IMAGE]);
    let example = format!("{}:/etc/anabranch/anabranch.toml:ro", unpacked.root.join(EXAMPLE).display());
    let started = ["run", "--isolation", "chroot", "--volume", &example, &container, "--"];
    let checked = storage.buildah(&[&started[..], &[PROGRAM, "check", "--offline"]].concat());
    assert!(checked.contains("ok folder for temporary files: /var/cache/anabranch"), "{checked}");

    let root = PathBuf::from(storage.buildah(&["mount", &container]));
    for notices in ["anabranch/copyright", "anabranch/THIRD-PARTY", "libc6/copyright"] {
        let notices = root.join("usr/share/doc").join(notices);
        assert!(notices.is_file(), "the image has no {}", notices.display());
    }
    // This isolation leaves the root writable, so the same files are run once more under a read-only mount.
    let script = "mount --bind \"$1\" /mnt\n\
                  mount --bind \"$2\" /mnt/etc/anabranch\n\
                  mount -t tmpfs -o mode=1777 tmpfs /mnt/var/cache/anabranch\n\
                  mount -o remount,ro,bind /mnt\n\
                  if touch /mnt/written 2>/dev/null; then exit 99; fi\n\
                  TMPDIR=/var/cache/anabranch exec chroot --userspec=65532:65532 --groups= /mnt \
                  /usr/bin/anabranch --config /etc/anabranch/anabranch.example.toml check --offline\n";
    let mut restricted = Command::new("unshare");
    restricted.args(["--mount", "sh", "-e", "-c", script, "sh"]).arg(&root);
    succeed(restricted.arg(unpacked.root.join(EXAMPLE).parent().unwrap()));
    storage.buildah(&["rm", &container]);
}

/// Starts the daemon as `docs/operation.md` says, asks it for its health and its page, and stops it.
fn podman_runs_it(storage: &Storage) {
    let probe = [&["run", "--rm"][..], &STARTED[..], &[IMAGE, "--version"]].concat();
    let probed = storage.podman(&probe).output().unwrap();
    let reason = String::from_utf8_lossy(&probed.stderr).into_owned();
    let is_not_started = probed.status.code().is_some_and(|code| NOT_STARTED.contains(&code));
    // A runtime that cannot run the image's program names it.
    if is_not_started && !reason.contains(PROGRAM) {
        return println!("skipped: podman starts no container here: {reason}");
    }
    assert!(probed.status.success(), "podman does not run the image ({}): {reason}", probed.status);
    let port = free_port().unwrap();
    let file = storage.folder.join("anabranch.toml");
    let listen = format!("\n[http]\nlisten = \"127.0.0.1:{port}\"\n");
    fs::write(&file, format!("{CONFIGURATION}{listen}")).unwrap();
    let volume = format!("{}:/etc/anabranch/anabranch.toml:ro", file.display());
    let named = ["run", "--rm", "--name", CONTAINER, "--volume", &volume];
    let mut podman = storage.podman(&[&named[..], &STARTED[..], &[IMAGE]].concat());
    let podman = podman.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut started = Started { storage, podman };

    let deadline = Instant::now() + START_MAX;
    let mut healthy = storage.inside("65532:65532", &["health"]);
    while !healthy.status.success() {
        let said = String::from_utf8_lossy(&healthy.stderr).into_owned();
        assert!(Instant::now() < deadline, "the daemon in the container is not healthy: {said}");
        healthy = storage.inside("65532:65532", &["health"]);
    }
    let page = get(port, "/");
    assert!(page.contains("<!doctype html>"), "{page}");
    // An administrator cannot write either, so the root is read-only.
    let written = storage.inside("0:0", &["bundle", "/written"]);
    let said = String::from_utf8_lossy(&written.stderr).into_owned();
    assert!(!written.status.success() && said.contains("Read-only file system"), "{said}");

    succeed(&mut storage.podman(&["stop", "--time", "30", CONTAINER]));
    let status = started.podman.wait().unwrap();
    assert!(status.success(), "the daemon ended with {status}");
}

/// Returns the answer of the daemon on this port, with its head.
fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
