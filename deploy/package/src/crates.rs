//! The crates of others that are linked into the daemon, as `cargo metadata` knows them.
//!
//! Normal dependencies count, for the machine of the binary. Procedural macros and dependencies of build scripts run
//! while the program is built, and no part of them is in it. Cargo unites the features of the whole workspace here, so
//! the list may also name a crate that only the tests turn on.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::{PackageError, Result, checkout, programs};

/// Package of the workspace whose binary is packed.
const ROOT: &str = "anabranch";
/// Kind of the target of a procedural macro.
const MACRO: &str = "proc-macro";

/// A crate of a registry, with the folder of its sources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkedCrate {
    pub name: String,
    pub version: String,
    /// The licence as an SPDX expression, such as `MIT OR Apache-2.0`.
    pub license: Option<String>,
    /// The file that the manifest names as the licence, below the folder.
    pub license_file: Option<PathBuf>,
    pub folder: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Graph,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<PathBuf>,
    /// The registry; `None` for a package of the checkout.
    source: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<BuildTarget>,
}

#[derive(Debug, Deserialize)]
struct BuildTarget {
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    /// `dev` or `build`; `None` for a normal dependency.
    kind: Option<String>,
}

/// Asks cargo for the crates in a daemon for this machine, such as `x86_64-unknown-linux-gnu`.
pub fn linked(target: &str) -> Result<Vec<LinkedCrate>> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    read(&programs::output(cargo.current_dir(checkout()))?)
}

/// Returns the crates in the order of their names.
fn read(text: &[u8]) -> Result<Vec<LinkedCrate>> {
    let unfit = |reason: String| PackageError::MetadataUnfit { reason };
    let metadata: Metadata = serde_json::from_slice(text).map_err(|error| unfit(error.to_string()))?;
    let packages: HashMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let edges: HashMap<&str, &[Edge]> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node.deps.as_slice())).collect();
    let is_root = |package: &&Package| package.name == ROOT && package.source.is_none();
    let root = metadata.packages.iter().find(is_root);
    let root = root.ok_or_else(|| unfit(format!("it knows no package {ROOT} of this checkout")))?;

    let mut open = vec![root.id.as_str()];
    let mut seen: BTreeSet<&str> = open.iter().copied().collect();
    let mut crates = Vec::new();
    while let Some(id) = open.pop() {
        let package = packages.get(id).ok_or_else(|| unfit(format!("it describes no package {id}")))?;
        if package.is_macro() {
            continue;
        }
        if package.source.is_some() {
            crates.push(package.linked());
        }
        for edge in edges.get(id).copied().unwrap_or_default() {
            if edge.is_normal() && seen.insert(&edge.pkg) {
                open.push(&edge.pkg);
            }
        }
    }
    crates.sort();
    Ok(crates)
}

impl Package {
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == MACRO))
    }

    fn linked(&self) -> LinkedCrate {
        LinkedCrate {
            name: self.name.clone(),
            version: self.version.clone(),
            license: self.license.clone(),
            license_file: self.license_file.clone(),
            folder: self.manifest_path.parent().map(Path::to_path_buf).unwrap_or_default(),
        }
    }
}

impl Edge {
    fn is_normal(&self) -> bool {
        self.dep_kinds.iter().any(|edge| edge.kind.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, source: &str, kind: &str) -> String {
        format!(
            r#"{{"id": "{name}", "name": "{name}", "version": "1.0.0", "license": "MIT", "license_file": null,
                "source": {source}, "manifest_path": "/crates/{name}/Cargo.toml",
                "targets": [{{"kind": ["{kind}"]}}]}}"#
        )
    }

    fn node(id: &str, deps: &[(&str, &str)]) -> String {
        let edge = |(pkg, kind): &(&str, &str)| {
            format!(r#"{{"name": "x", "pkg": "{pkg}", "dep_kinds": [{{"kind": {kind}, "target": null}}]}}"#)
        };
        let deps: Vec<String> = deps.iter().map(edge).collect();
        format!(r#"{{"id": "{id}", "deps": [{}]}}"#, deps.join(", "))
    }

    #[test]
    fn crates_of_tests_build_scripts_and_macros_are_not_in_the_program() {
        let registry = "\"registry\"";
        let packages = [
            package("anabranch", "null", "lib"),
            package("pipeline", "null", "lib"),
            package("deep", registry, "lib"),
            package("direct", registry, "lib"),
            package("derive", registry, "proc-macro"),
            package("parser", registry, "lib"),
            package("tester", registry, "lib"),
            package("compiler", registry, "lib"),
        ];
        let nodes = [
            node("anabranch", &[("pipeline", "null"), ("direct", "null"), ("tester", "\"dev\"")]),
            node("pipeline", &[("derive", "null"), ("deep", "null")]),
            node("direct", &[("deep", "null"), ("compiler", "\"build\"")]),
            node("derive", &[("parser", "null")]),
        ];
        let (packages, nodes) = (packages.join(", "), nodes.join(", "));
        let text = format!(r#"{{"packages": [{packages}], "resolve": {{"nodes": [{nodes}]}}}}"#);
        let found = read(text.as_bytes()).unwrap();
        let names: Vec<&str> = found.iter().map(|linked| linked.name.as_str()).collect();
        assert_eq!(names, ["deep", "direct"]);
        assert_eq!(found[0].folder, Path::new("/crates/deep"));
    }

    #[test]
    fn metadata_of_another_workspace_is_refused() {
        let text = br#"{"packages": [], "resolve": {"nodes": []}}"#;
        let refused = read(text).unwrap_err().to_string();
        assert!(refused.contains("no package anabranch"), "{refused}");
        assert!(read(b"[]").is_err());
    }
}
