//! OpenSearch from its jars in Maven's registry: no package exists, and the distribution is a download of 900 MB.
//!
//! Maven checks the checksums. Its downloads stay in the stack's folder, beside a program of a few lines that starts a
//! node with the needed plugins.

use std::fs;
use std::path::{Path, PathBuf};

use super::java::{self, Java};
use super::{apt, run};
use crate::error::{FileContext, Result, StackError};
use crate::layout::{make_folder, remove_folder};

/// The version that the project file names.
pub(super) const VERSION: &str = "2.19.4";

const PROJECT: &str = include_str!("java/pom.xml");
const NODE: &str = include_str!("java/SearchNode.java");
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The programs of an OpenSearch node.
#[derive(Debug, Clone)]
pub(crate) struct SearchPrograms {
    pub(crate) java: PathBuf,
    pub(crate) class_path: String,
    pub(crate) environment: Vec<(String, String)>,
    security: PathBuf,
}

pub(super) fn install(java: &Java, folder: &Path) -> Result<()> {
    let jars = folder.join("jars");
    let repository = folder.join("tmp/repository");
    let project = folder.join("pom.xml");
    fs::write(&project, PROJECT).file("write", &project)?;
    run(
        java.maven()
            .args(["-q", "-B", "--strict-checksums", "-ntp", COPY, "-DincludeScope=runtime"])
            .arg("-f")
            .arg(&project)
            .arg(format!("-Dmaven.repo.local={}", repository.display()))
            .arg(format!("-DoutputDirectory={}", jars.display())),
        java::HELP,
    )?;
    remove_folder(&repository)?;

    let is_plugin = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "zip");
    let plugin =
        apt::files(&jars)?.into_iter().find(is_plugin).ok_or_else(|| StackError::ProgramMissing {
            what: "OpenSearch's security plugin".to_owned(),
            reason: "Maven has not copied it".to_owned(),
            help: java::HELP.to_owned(),
        })?;
    let security = folder.join("security");
    make_folder(&security)?;
    run(java.archiver().current_dir(&security).arg("xf").arg(&plugin), java::HELP)?;
    fs::remove_file(&plugin).file("remove", &plugin)?;

    let source = folder.join("tmp/SearchNode.java");
    fs::write(&source, NODE).file("write", &source)?;
    let classes = folder.join("tmp/classes");
    run(
        java.compiler().arg("-cp").arg(class_path(folder)?).arg("-d").arg(&classes).arg(&source),
        java::HELP,
    )?;
    let node = jars.join("search-node.jar");
    run(java.archiver().arg("cf").arg(&node).arg("-C").arg(&classes).arg("."), java::HELP).map(drop)
}

/// Returns all jars of an installation, in a fixed order; those of the security plugin come last.
fn class_path(folder: &Path) -> Result<String> {
    let mut jars = Vec::new();
    for part in ["jars", "security"] {
        let files = apt::files(&folder.join(part))?;
        jars.extend(files.into_iter().filter(|file| file.extension().is_some_and(|end| end == "jar")));
    }
    Ok(jars.iter().map(|jar| jar.display().to_string()).collect::<Vec<_>>().join(":"))
}

impl SearchPrograms {
    pub(super) fn new(java: &Java, folder: &Path) -> Result<Self> {
        Ok(Self {
            java: java.program(),
            class_path: class_path(folder)?,
            environment: java.environment.clone(),
            security: folder.join("security/config"),
        })
    }

    /// Returns the security plugin's own files, of which a node needs a whole set.
    pub(crate) fn security_files(&self) -> Result<Vec<PathBuf>> {
        let is_used = |file: &PathBuf| file.extension().is_some_and(|end| end == "yml");
        Ok(apt::files(&self.security)?.into_iter().filter(is_used).collect())
    }
}
