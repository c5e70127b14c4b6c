//! Determines which modules of a crate import which others.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, Macro, UseTree, Visibility};

use crate::module::{ModulePath, Modules};

/// The modules that each module imports.
pub(crate) type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// For each module: the names that its `use` items introduce, with the paths to which they refer.
type Aliases = BTreeMap<ModulePath, BTreeMap<String, Vec<String>>>;

/// Maximum length of a chain of re-exports that is followed.
const MAX_RE_EXPORTS: usize = 8;

/// Determines the imports between `modules`. A module does not import itself.
pub(crate) fn find_imports(modules: &Modules) -> Imports {
    let aliases = find_aliases(modules);
    let mut imports = Imports::new();
    for (path, items) in modules {
        let mut collector = Collector::default();
        items.iter().for_each(|item| collector.visit_item(item));
        let targets = collector.paths.iter().filter_map(|p| resolve(modules, &aliases, path, p));
        imports.insert(path.clone(), targets.filter(|target| target != path).collect());
    }
    imports
}

fn find_aliases(modules: &Modules) -> Aliases {
    let mut all = Aliases::new();
    for (path, items) in modules {
        for item in items {
            let Item::Use(item) = item else { continue };
            let mut paths = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut paths);
            for (names, alias) in paths {
                all.entry(path.clone()).or_default().insert(alias, names);
            }
        }
    }
    all
}

/// Appends the paths of a `use` tree to `paths`, each with the name that the `use` introduces.
/// `prefix` is the path in which the tree is nested.
fn flatten(tree: &UseTree, prefix: &mut Vec<String>, paths: &mut Vec<(Vec<String>, String)>) {
    let depth = prefix.len();
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, paths);
        }
        UseTree::Group(group) => group.items.iter().for_each(|t| flatten(t, prefix, paths)),
        UseTree::Name(name) if name.ident == "self" => {
            paths.push((prefix.clone(), prefix.last().cloned().unwrap_or_default()));
        }
        UseTree::Name(name) => {
            prefix.push(name.ident.to_string());
            paths.push((prefix.clone(), name.ident.to_string()));
        }
        UseTree::Rename(name) => {
            prefix.push(name.ident.to_string());
            paths.push((prefix.clone(), name.rename.to_string()));
        }
        UseTree::Glob(_) => paths.push((prefix.clone(), "*".to_owned())),
    }
    prefix.truncate(depth);
}

/// Returns the module that defines the item to which the path `names` in the module `from`
/// refers. Returns `None` if the item is not defined in one of `modules`.
fn resolve(
    modules: &Modules,
    aliases: &Aliases,
    from: &ModulePath,
    names: &[String],
) -> Option<ModulePath> {
    let (mut module, mut rest) = split_first_module(modules, from, names)?;
    for _ in 0..MAX_RE_EXPORTS {
        while let Some((name, after)) = rest.split_first() {
            let child: ModulePath = module.iter().cloned().chain([name.clone()]).collect();
            if !modules.contains_key(&child) {
                break;
            }
            (module, rest) = (child, after.to_vec());
        }
        let Some(name) = rest.first() else { return Some(module) };
        let Some(target) = aliases.get(&module).and_then(|names| names.get(name)) else {
            return Some(module);
        };
        let target: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
        // If `module` re-exports an item of another crate, the item counts as one of `module`.
        let Some(next) = split_first_module(modules, &module, &target) else {
            return Some(module);
        };
        (module, rest) = next;
    }
    Some(module)
}

/// Splits the path `names` in the module `from` into the module with which it starts, and the
/// rest. Returns `None` if the path starts with another crate or with an item of `from`.
fn split_first_module(
    modules: &Modules,
    from: &ModulePath,
    names: &[String],
) -> Option<(ModulePath, Vec<String>)> {
    let mut module = match names.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => from.clone(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        child => {
            let path: ModulePath = from.iter().cloned().chain([child.to_owned()]).collect();
            return modules.contains_key(&path).then(|| (path, names[1..].to_vec()));
        }
    };
    let mut rest = &names[1..];
    while rest.first().is_some_and(|name| name == "super") {
        module.pop()?;
        rest = &rest[1..];
    }
    Some((module, rest.to_vec()))
}

/// Collects the paths in the code of a module.
#[derive(Default)]
struct Collector {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A re-export is not an import. The module that uses it imports the module that defines
        // the item.
        if matches!(item.vis, Visibility::Inherited) {
            let mut paths = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut paths);
            self.paths.extend(paths.into_iter().map(|(names, _)| names));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, mac: &'ast Macro) {
        self.visit_path(&mac.path);
        self.collect_tokens(mac.tokens.clone());
    }
}

impl Collector {
    /// Collects sequences of identifiers with `::` between them from the arguments of a macro.
    fn collect_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    self.collect_tokens(group.stream());
                }
                _ => self.end_path(&mut path),
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.paths.push(path.clone());
        }
        path.clear();
    }
}
