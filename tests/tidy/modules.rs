//! The modules of each crate, and the file to which a path leads.
//!
//! Imports are followed through re-exports and globs to the file that defines the name. Names that a macro makes or a
//! method call finds are not seen, and neither are modules for `cfg(test)`.

use std::collections::{HashMap, HashSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::Source;

pub type ModuleId = usize;

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Module(ModuleId),
    /// A name that this module defines.
    Item(ModuleId),
}

#[derive(Debug, Default)]
pub struct Module {
    /// Index into the files.
    pub file: usize,
    pub parent: Option<ModuleId>,
    children: HashMap<String, ModuleId>,
    items: HashSet<String>,
    /// Name and path of each import.
    imports: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    /// Every path that the module mentions outside of imports.
    pub mentions: Vec<Vec<String>>,
    /// The path of each import, and whether it is exported.
    pub imported: Vec<(Vec<String>, bool)>,
}

/// All modules of all crates; paths never leave their crate.
#[derive(Debug, Default)]
pub struct Modules(pub Vec<Module>);

impl Modules {
    pub fn of(sources: &[Source]) -> Self {
        let by_path: HashMap<&str, usize> =
            sources.iter().enumerate().map(|(index, source)| (source.path(), index)).collect();
        let declared: HashSet<usize> = sources
            .iter()
            .flat_map(|source| {
                let names = source.syntax.items.iter().filter_map(|item| match item {
                    syn::Item::Mod(module) if module.content.is_none() => Some(module.ident.to_string()),
                    _ => None,
                });
                names.filter_map(|name| file_of(source.path(), &[], &name, &by_path)).collect::<Vec<_>>()
            })
            .collect();
        let mut modules = Self::default();
        for root in (0..sources.len()).filter(|index| !declared.contains(index)) {
            let items = &sources[root].syntax.items;
            modules.add(sources, &by_path, (root, None, Vec::new()), items);
        }
        modules
    }

    /// Adds a module with everything below it. `inline` names the modules of the same file that enclose it, from the
    /// outermost on.
    fn add(
        &mut self,
        sources: &[Source],
        by_path: &HashMap<&str, usize>,
        (file, parent, inline): (usize, Option<ModuleId>, Vec<String>),
        items: &[syn::Item],
    ) -> ModuleId {
        let id = self.0.len();
        self.0.push(Module { file, parent, ..Module::default() });
        let mut below = Vec::new();
        for item in items {
            if let syn::Item::Mod(module) = item
                && !is_for_tests(&module.attrs)
            {
                below.push(module);
            }
            self.0[id].items.extend(name_of(item));
            let mut reader = Reader(&mut self.0[id]);
            reader.visit_item(item);
        }
        for module in below {
            let name = module.ident.to_string();
            let child = match &module.content {
                Some((_, items)) => {
                    let inline = [&inline[..], std::slice::from_ref(&name)].concat();
                    Some(self.add(sources, by_path, (file, Some(id), inline), items))
                }
                None => file_of(sources[file].path(), &inline, &name, by_path).map(|file| {
                    self.add(sources, by_path, (file, Some(id), Vec::new()), &sources[file].syntax.items)
                }),
            };
            self.0[id].children.extend(child.map(|child| (name, child)));
        }
        id
    }

    /// Returns what a path means in `module`; `None` when no module of the crate defines its target.
    pub fn resolve(&self, module: ModuleId, path: &[String]) -> Option<Found> {
        self.resolve_within(module, path, &mut HashSet::new())
    }

    /// Resolves a path. `asked` holds each name that was sought before: modules may import each other by `*`, and the
    /// search must end.
    fn resolve_within(
        &self,
        module: ModuleId,
        path: &[String],
        asked: &mut HashSet<(ModuleId, String)>,
    ) -> Option<Found> {
        let (first, mut rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(self.root(module)),
            "self" => Found::Module(module),
            "super" => Found::Module(self.0[module].parent?),
            name => self.name(module, name, asked)?,
        };
        while let (Found::Module(at), Some((next, tail))) = (found, rest.split_first()) {
            found = match next.as_str() {
                "super" => Found::Module(self.0[at].parent?),
                "self" => found,
                name => self.name(at, name, asked)?,
            };
            rest = tail;
        }
        Some(found)
    }

    fn name(&self, module: ModuleId, name: &str, asked: &mut HashSet<(ModuleId, String)>) -> Option<Found> {
        if !asked.insert((module, name.to_owned())) {
            return None;
        }
        let known = &self.0[module];
        if let Some(child) = known.children.get(name) {
            return Some(Found::Module(*child));
        }
        if known.items.contains(name) {
            return Some(Found::Item(module));
        }
        if let Some((_, path)) = known.imports.iter().find(|(imported, _)| imported == name) {
            return self.resolve_within(module, path, asked);
        }
        known.globs.iter().find_map(|glob| match self.resolve_within(module, glob, asked)? {
            Found::Module(found) => self.name(found, name, asked),
            Found::Item(_) => None,
        })
    }

    fn root(&self, module: ModuleId) -> ModuleId {
        self.0[module].parent.map_or(module, |parent| self.root(parent))
    }

    /// Returns whether `above` encloses `module`, directly or not.
    pub fn is_within(&self, module: ModuleId, above: ModuleId) -> bool {
        self.0[module].parent.is_some_and(|parent| parent == above || self.is_within(parent, above))
    }
}

/// The file of `mod name;` in the file `path`; `None` when the tree has none.
fn file_of(path: &str, inline: &[String], name: &str, by_path: &HashMap<&str, usize>) -> Option<usize> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    // A root of another name has its modules beside it, as `main.rs` does.
    let folders = match stem {
        "mod" | "lib" | "main" => vec![folder.to_owned()],
        _ => vec![format!("{folder}/{stem}"), folder.to_owned()],
    };
    folders.into_iter().find_map(|folder| {
        let below = [&[folder][..], inline, &[name.to_owned()]].concat().join("/");
        let below = below.trim_start_matches('/');
        let files = [format!("{below}.rs"), format!("{below}/mod.rs")];
        files.iter().find_map(|file| by_path.get(file.as_str()).copied())
    })
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        matches!(&attribute.meta, syn::Meta::List(list)
            if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects the names and paths of one module, without the modules within it.
struct Reader<'m>(&'m mut Module);

impl Reader<'_> {
    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_exported: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), is_exported),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, is_exported));
            }
            syn::UseTree::Glob(_) => self.0.globs.push(before.to_vec()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let own = before.last().cloned().unwrap_or_default();
                self.add(own, before.to_vec(), is_exported);
            }
            syn::UseTree::Name(name) => self.add(name.ident.to_string(), with(&name.ident), is_exported),
            syn::UseTree::Rename(rename) => {
                self.add(rename.rename.to_string(), with(&rename.ident), is_exported);
            }
        }
    }

    fn add(&mut self, name: String, path: Vec<String>, is_exported: bool) {
        self.0.imports.push((name, path.clone()));
        self.0.imported.push((path, is_exported));
    }

    /// Collects the paths in the tokens of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 => path.push(name.to_string()),
                TokenTree::Ident(name) => {
                    self.0.mentions.push(std::mem::replace(&mut path, vec![name.to_string()]));
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                other => {
                    self.0.mentions.push(std::mem::take(&mut path));
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
            colons = 0;
        }
        self.0.mentions.push(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, _: &'ast syn::ItemMod) {}

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        let is_exported = !matches!(import.vis, syn::Visibility::Inherited);
        self.import(&import.tree, &[], is_exported);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.mentions.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}
