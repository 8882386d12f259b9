//! The Debian package of the debug binary: installed into a private root, looked through, and run from there;
//! `container` makes an image of it, and `licences` reads the notices in it.
//!
//! A machine without `dpkg-deb`, or without a program that one of the tests needs, prints `skipped:`.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

mod container;
mod licences;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anabranch_package::{Order, pack};
use flate2::read::GzDecoder;

/// Time of all files in the package: 2001-09-09 01:46:40 UTC.
const EPOCH_SECONDS: u64 = 1_000_000_000;
/// Every file of the package but manual pages, with its rights.
const FILES: [(&str, u32); 34] = [
    ("usr/bin/anabranch", 0o755),
    ("usr/lib/systemd/system/anabranch.service", 0o644),
    ("usr/share/bash-completion/completions/anabranch", 0o644),
    ("usr/share/doc/anabranch/RUNBOOK.md", 0o644),
    ("usr/share/doc/anabranch/SECURITY.md", 0o644),
    ("usr/share/doc/anabranch/THIRD-PARTY", 0o644),
    ("usr/share/doc/anabranch/changelog.gz", 0o644),
    ("usr/share/doc/anabranch/connect.md", 0o644),
    ("usr/share/doc/anabranch/copyright", 0o644),
    ("usr/share/doc/anabranch/examples/anabranch.example.toml", 0o644),
    ("usr/share/doc/anabranch/examples/flux.example.toml", 0o644),
    ("usr/share/doc/anabranch/examples/grafana/lanes.json", 0o644),
    ("usr/share/doc/anabranch/examples/grafana/overview.json", 0o644),
    ("usr/share/doc/anabranch/examples/grafana/reconciliation.json", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mariadb-flux-sequence.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mariadb-source.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mariadb-target.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mysql-flux-sequence.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mysql-source.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/mysql-target.sql", 0o644),
    ("usr/share/doc/anabranch/examples/grants/nats-accounts.conf", 0o644),
    ("usr/share/doc/anabranch/examples/grants/opensearch-roles.yml", 0o644),
    ("usr/share/doc/anabranch/examples/grants/redis-cache.acl", 0o644),
    ("usr/share/doc/anabranch/examples/plans/birthdays.toml", 0o644),
    ("usr/share/doc/anabranch/examples/plans/flux.toml", 0o644),
    ("usr/share/doc/anabranch/examples/plans/serial-codes.toml", 0o644),
    ("usr/share/doc/anabranch/examples/prometheus/rules.yml", 0o644),
    ("usr/share/doc/anabranch/examples/serial-codes.example.toml", 0o644),
    ("usr/share/doc/anabranch/limits.md", 0o644),
    ("usr/share/doc/anabranch/operation.md", 0o644),
    ("usr/share/fish/vendor_completions.d/anabranch.fish", 0o644),
    ("usr/share/man/man1/anabranch.1.gz", 0o644),
    ("usr/share/man/man5/anabranch.toml.5.gz", 0o644),
    ("usr/share/zsh/vendor-completions/_anabranch", 0o644),
];
/// Settings of the unit that systemd before 254 does not know, and passes over.
const NEWER_SETTINGS: [&str; 2] = ["'RestartSteps'", "'RestartMaxDelaySec'"];
/// Notices of the standard library, which a tool chain may lack.
const STANDARD_LIBRARY: &str = "usr/share/doc/anabranch/THIRD-PARTY-rust.html.gz";
const EXAMPLE: &str = "usr/share/doc/anabranch/examples/anabranch.example.toml";

/// The package, and a folder with its files.
struct Unpacked {
    binary: PathBuf,
    package: PathBuf,
    root: PathBuf,
}

/// Returns the unpacked package, made once for all tests; `None` after a line that says why there is none.
fn unpacked() -> Option<&'static Unpacked> {
    static UNPACKED: OnceLock<Option<Unpacked>> = OnceLock::new();
    let unpacked = UNPACKED.get_or_init(|| {
        Command::new("dpkg-deb").arg("--version").output().ok()?;
        let folder = empty_folder("unpacked");
        let binary = anabranch_demo::daemon::build().expect("the daemon is built");
        let package = packed(&binary, &folder);
        let root = folder.join("root");
        succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root));
        Some(Unpacked { binary, package, root })
    });
    if unpacked.is_none() {
        println!("skipped: this machine has no dpkg-deb");
    }
    unpacked.as_ref()
}

fn packed(binary: &Path, folder: &Path) -> PathBuf {
    // A quick compression: the debug binary is large.
    let order = Order { binary, folder, compression: "none", epoch_seconds: EPOCH_SECONDS };
    pack(&order).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns an empty folder of this name, below the build folder.
fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package").join(name);
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command that must succeed; returns its standard output.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{command:?}: {status}\n{}{}", said(&stdout), said(&stderr));
    said(&stdout)
}

/// Returns whether a program of this machine can be run with these arguments, and says so if not.
fn has(program: &str, arguments: &[&str]) -> bool {
    let is_there = Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: `{program} {}` does not work here", arguments.join(" "));
    }
    is_there
}

/// Returns path and rights of each file below a folder.
fn files(root: &Path) -> BTreeMap<String, u32> {
    let (mut files, mut open) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, mode & 0o7777);
            }
        }
    }
    files
}

/// Returns the content of a file, decompressed if its name ends so.
fn content(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut content = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut content).unwrap();
    content
}

#[test]
fn the_package_has_these_files_with_these_rights_and_no_others() {
    let Some(unpacked) = unpacked() else { return };
    let mut files = files(&unpacked.root);
    let all = files.len();
    files.retain(|path, _| !path.starts_with("usr/share/man/man1/anabranch-"));
    assert!(all - files.len() > 30, "only {} manual pages of commands", all - files.len());
    if files.remove(STANDARD_LIBRARY).is_none() {
        println!("skipped: this tool chain came without the notices of the standard library");
    }
    let expected: BTreeMap<String, u32> = FILES.map(|(path, mode)| (path.to_owned(), mode)).into();
    assert_eq!(files, expected);
    assert!(unpacked.root.join("etc/anabranch").is_dir());
    let listed = succeed(Command::new("dpkg-deb").arg("-c").arg(&unpacked.package));
    for line in listed.lines() {
        let mut fields = line.split_whitespace();
        let (mode, owner) = (fields.next().unwrap(), fields.next().unwrap());
        assert!(mode == "drwxr-xr-x" || mode.starts_with('-'), "{line}");
        assert_eq!(owner, "root/root", "{line}");
    }
}

#[test]
fn the_control_file_names_version_machine_and_libraries() {
    let Some(unpacked) = unpacked() else { return };
    let field = |name: &str| succeed(Command::new("dpkg-deb").arg("-f").arg(&unpacked.package).arg(name));
    assert_eq!(field("Package").trim(), "anabranch");
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION").replacen('-', "~", 1));
    assert!(field("Depends").starts_with("libc6 (>= 2."), "{}", field("Depends"));
    let name = unpacked.package.file_name().unwrap().to_str().unwrap();
    assert!(name.ends_with(&format!("_{}.deb", field("Architecture").trim())), "{name}");
}

#[test]
fn the_same_binary_makes_the_same_package() {
    let Some(unpacked) = unpacked() else { return };
    let again = packed(&unpacked.binary, &empty_folder("again"));
    assert!(fs::read(again).unwrap() == fs::read(&unpacked.package).unwrap(), "the packages differ");
}

#[test]
fn each_command_has_a_manual_page_and_its_completion() {
    let Some(unpacked) = unpacked() else { return };
    let help = succeed(Command::new(unpacked.root.join("usr/bin/anabranch")).arg("--help"));
    let (_, commands) = help.split_once("\nCommands:\n").expect("a list of commands");
    let (commands, _) = commands.split_once("\n\n").expect("the end of the list");
    // Further lines of a description stand further to the right.
    let names: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 20 && names.contains(&"manual"), "{names:?}");
    let completion = content(&unpacked.root.join("usr/share/bash-completion/completions/anabranch"));
    let completion = String::from_utf8(completion).unwrap();
    for name in names {
        let page = unpacked.root.join(format!("usr/share/man/man1/anabranch-{name}.1.gz"));
        let page = String::from_utf8(content(&page)).unwrap();
        assert!(page.contains("\n.SH NAME\n") && page.contains("\n.SH SYNOPSIS\n"), "{name}:\n{page}");
        assert!(completion.contains(name), "{name}");
    }
    let page = String::from_utf8(content(&unpacked.root.join("usr/share/man/man5/anabranch.toml.5.gz")));
    assert!(page.unwrap().contains("max_age_seconds"));
}

#[test]
fn the_program_runs_without_rights_on_a_read_only_file_system() {
    let Some(unpacked) = unpacked() else { return };
    let program = unpacked.root.join("usr/bin/anabranch");
    assert!(succeed(Command::new(&program).arg("--version")).starts_with("anabranch "));
    succeed(
        Command::new(&program).arg("--config").arg(unpacked.root.join(EXAMPLE)).args(["check", "--offline"]),
    );

    if !has("unshare", &["--mount", "true"]) || !has("setpriv", &["--version"]) {
        return;
    }
    // The folder of a build may lie where another account cannot look, and /mnt is everywhere. `check` tries the folder
    // for temporary files, which the unit gives to the daemon as its one place to write.
    let script = "mount --bind \"$1\" /mnt\n\
                  mount -t tmpfs tmpfs /tmp\n\
                  mount -o remount,ro,bind /mnt\n\
                  mount -o remount,ro,bind /\n\
                  if touch /mnt/written 2>/dev/null; then exit 99; fi\n\
                  cd /\n\
                  exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs \
                  /mnt/usr/bin/anabranch --config \"/mnt/$2\" check --offline\n";
    let mut restricted = Command::new("unshare");
    restricted.args(["--mount", "sh", "-e", "-c", script, "sh"]).arg(&unpacked.root).arg(EXAMPLE);
    restricted.env_remove("TMPDIR");
    succeed(&mut restricted);
}

#[test]
fn systemd_accepts_the_unit() {
    let Some(unpacked) = unpacked() else { return };
    if !has("systemd-analyze", &["--version"]) {
        return;
    }
    // The unit is checked with the program of the private root, since systemd looks whether it can be run.
    let unit = fs::read_to_string(unpacked.root.join("usr/lib/systemd/system/anabranch.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/anabranch run\n"), "{unit}");
    for line in ["SuccessExitStatus=3 143", "RestartForceExitStatus=3", "RestartPreventExitStatus=2"] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
    let program = format!("ExecStart={}/usr/bin/anabranch", unpacked.root.display());
    let path = empty_folder("unit").join("anabranch.service");
    fs::write(&path, unit.replace("ExecStart=/usr/bin/anabranch", &program)).unwrap();
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_newer = |line: &&str| NEWER_SETTINGS.iter().any(|setting| line.contains(setting));
    let complaints: Vec<&str> = said.lines().filter(|line| !is_newer(line)).collect();
    assert!(output.status.success() && complaints.is_empty(), "{}\n{said}", output.status);
}

#[test]
fn no_file_names_a_folder_of_the_build() {
    let Some(unpacked) = unpacked() else { return };
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let folders = [checkout, PathBuf::from(env!("CARGO_TARGET_TMPDIR")), std::env::temp_dir().join(".tmp")];
    let is_stripped = has("strip", &["--version"]);
    for path in files(&unpacked.root).into_keys() {
        // Debug information names the sources.
        if path == "usr/bin/anabranch" && !is_stripped {
            continue;
        }
        let content = content(&unpacked.root.join(&path));
        for folder in &folders {
            let name = folder.to_str().unwrap().as_bytes();
            assert!(
                !content.windows(name.len()).any(|part| part[0] == name[0] && part == name),
                "{path}: {}",
                folder.display()
            );
        }
    }
}

#[test]
fn dpkg_installs_upgrades_and_purges_it_and_leaves_the_configuration() {
    let Some(unpacked) = unpacked() else { return };
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return println!("skipped: only root can install");
    }
    let root = empty_folder("installed");
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        // The private root has neither a shell nor the libraries. The scripts then see `DPKG_ROOT`.
        dpkg.arg("--root").arg(&root).arg("--log=/dev/null");
        dpkg.args(["--force-script-chrootless", "--force-depends"]);
        succeed(dpkg.args(arguments));
    };
    let package = unpacked.package.to_str().unwrap();
    dpkg(&["--install", package]);
    succeed(Command::new(root.join("usr/bin/anabranch")).arg("--version"));
    fs::write(root.join("etc/anabranch/anabranch.toml"), "# an operator's own\n").unwrap();
    dpkg(&["--install", package]);
    dpkg(&["--purge", "anabranch"]);
    let left: Vec<String> =
        files(&root).into_keys().filter(|path| !path.starts_with("var/lib/dpkg/")).collect();
    assert_eq!(left, ["etc/anabranch/anabranch.toml"]);
}
