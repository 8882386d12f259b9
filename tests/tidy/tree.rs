//! The files of the tree: Rust sources, parsed once, Markdown documents, and files with names of other languages.

use std::path::{Path, PathBuf};

/// A file with its text.
#[derive(Debug)]
pub struct Text {
    /// Path below the root of the checkout, with `/`.
    pub path: String,
    pub text: String,
}

/// A Rust file.
pub struct Source {
    pub text: Text,
    pub syntax: syn::File,
}

impl Source {
    /// Parses a file.
    ///
    /// # Panics
    /// Panics when the text is not Rust.
    pub fn parse(text: Text) -> Self {
        let syntax = syn::parse_file(&text.text).unwrap_or_else(|error| {
            panic!("{}:{}: {error}", text.path, error.span().start().line);
        });
        Self { text, syntax }
    }

    pub fn path(&self) -> &str {
        &self.text.path
    }
}

/// Every Rust file of the tree, in the order of their paths.
pub fn sources() -> Vec<Source> {
    texts("rs").into_iter().map(Source::parse).collect()
}

/// Every Markdown file of the tree.
pub fn documents() -> Vec<Text> {
    texts("md")
}

/// Every file of the tree with one of these extensions.
pub fn texts_of(extensions: &[&str]) -> Vec<Text> {
    extensions.iter().flat_map(|extension| texts(extension)).collect()
}

/// Whether a file or folder of this path exists below the root.
pub fn exists(path: &str) -> bool {
    path.contains('/') && root().join(path).exists()
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

fn texts(extension: &str) -> Vec<Text> {
    let root = root();
    let mut paths = Vec::new();
    walk(root, root, &mut paths);
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    let text = |path: PathBuf| {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        Text { path, text }
    };
    paths.into_iter().map(text).collect()
}

/// Adds all files below a folder, except in hidden folders and the root's build folder.
fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder that was just opened").path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if is_hidden || path == root.join("target") {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, found);
        } else {
            found.push(path);
        }
    }
}
