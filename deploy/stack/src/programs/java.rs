//! Java with its compiler and Maven: from PATH, or from Debian's packages in a folder.
//!
//! No package script runs there, so this module makes the file of trusted certificates that such a script would make.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{apt, run};
use crate::error::{FileContext, Result, StackError};

/// Debian's packages for Java and Maven.
const PACKAGES: [&str; 3] = ["default-jdk-headless", "maven", "ca-certificates"];
/// Versions of Java on which OpenSearch 2.19 runs: from the first, below the second.
const MINIMUM: (u32, u32) = (17, 0);
const END: (u32, u32) = (22, 0);

const TRUST_STORE: &str = include_str!("java/TrustStore.java");

pub(super) const HELP: &str = "install Java 17 to 21 (with javac and jar) and Maven yourself so that they are on \
    PATH, on Debian and Ubuntu: apt-get install --no-install-recommends default-jdk-headless maven";

/// Paths of Java's programs, and their environment.
#[derive(Debug, Clone)]
pub(super) struct Java {
    java: PathBuf,
    compiler: PathBuf,
    archiver: PathBuf,
    maven: PathBuf,
    pub(super) environment: Vec<(String, String)>,
}

impl Java {
    /// Returns the programs of this machine if all exist and have a version on which OpenSearch runs.
    pub(super) fn on_path(find: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let java = find("java")?;
        let version = super::version(&java, &["--version"])?;
        let found = Self {
            java,
            compiler: find("javac")?,
            archiver: find("jar")?,
            maven: find("mvn")?,
            environment: Vec::new(),
        };
        (MINIMUM..END).contains(&version).then_some(found)
    }

    pub(super) fn unpack(folder: &Path) -> Result<()> {
        apt::unpack(folder, "Java and Maven", &PACKAGES)?;
        let root = folder.join("root");
        let java = Self::in_prefix(&root)?;
        let trusted = home(&root)?.join("lib/security/cacerts");
        // The package has a link here to the path where its script would put the file.
        match fs::remove_file(&trusted) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).file("remove", trusted);
            }
            _ => {}
        }
        let program = folder.join("tmp/TrustStore.java");
        fs::write(&program, TRUST_STORE).file("write", &program)?;
        run(java.java().arg(&program).arg(apt::certificate_bundle(&root)?).arg(&trusted), HELP).map(drop)
    }

    pub(super) fn in_prefix(root: &Path) -> Result<Self> {
        let home = home(root)?;
        Ok(Self {
            java: home.join("bin/java"),
            compiler: home.join("bin/javac"),
            archiver: home.join("bin/jar"),
            maven: root.join("usr/share/maven/bin/mvn"),
            environment: vec![
                ("JAVA_HOME".to_owned(), home.display().to_string()),
                ("LD_LIBRARY_PATH".to_owned(), apt::library_path(root)?),
            ],
        })
    }

    pub(super) fn program(&self) -> PathBuf {
        self.java.clone()
    }

    pub(super) fn java(&self) -> Command {
        self.command(&self.java)
    }

    pub(super) fn compiler(&self) -> Command {
        self.command(&self.compiler)
    }

    pub(super) fn archiver(&self) -> Command {
        self.command(&self.archiver)
    }

    pub(super) fn maven(&self) -> Command {
        self.command(&self.maven)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Returns the folder of the Java below an unpacked root, such as `usr/lib/jvm/java-17-openjdk-amd64`.
fn home(root: &Path) -> Result<PathBuf> {
    let folders = apt::files(&root.join("usr/lib/jvm"))?;
    folders.into_iter().find(|folder| folder.join("bin/java").is_file()).ok_or_else(|| {
        StackError::ProgramMissing {
            what: "Java".to_owned(),
            reason: format!("the unpacked packages hold none for {}", env::consts::ARCH),
            help: HELP.to_owned(),
        }
    })
}
