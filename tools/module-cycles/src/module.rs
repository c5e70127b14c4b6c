//! Reads the source of the modules of a crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use syn::{Attribute, Item, Meta};

/// The path of a module: its names from the crate root down. The path of the root is empty.
pub(crate) type ModulePath = Vec<String>;

/// The modules of a crate by path. A value is the items of the module, without submodules and
/// without items that are compiled for tests only.
pub(crate) type Modules = BTreeMap<ModulePath, Vec<Item>>;

/// Reads the crate in `folder` from its roots `src/lib.rs`, `src/main.rs` and `lib.rs`.
pub(crate) fn load(folder: &Path) -> anyhow::Result<Modules> {
    let mut modules = Modules::new();
    let mut found = false;
    for root in ["src/lib.rs", "src/main.rs", "lib.rs"] {
        let file = folder.join(root);
        if file.is_file() {
            found = true;
            load_file(&file, file.parent().unwrap_or(folder), Vec::new(), &mut modules)?;
        }
    }
    anyhow::ensure!(found, "the folder contains no src/lib.rs, src/main.rs or lib.rs");
    Ok(modules)
}

/// Adds the module `path`. Its source is `file`, and the files of its submodules are in `folder`.
fn load_file(
    file: &Path,
    folder: &Path,
    path: ModulePath,
    modules: &mut Modules,
) -> anyhow::Result<()> {
    let source = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let parsed = syn::parse_file(&source).with_context(|| file.display().to_string())?;
    load_items(parsed.items, folder, path, modules)
}

fn load_items(
    items: Vec<Item>,
    folder: &Path,
    path: ModulePath,
    modules: &mut Modules,
) -> anyhow::Result<()> {
    for item in items {
        let Item::Mod(module) = item else {
            if !is_test(attributes(&item)) {
                modules.entry(path.clone()).or_default().push(item);
            }
            continue;
        };
        if is_test(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let below = folder.join(&name);
        let path: ModulePath = path.iter().cloned().chain([name.clone()]).collect();
        match module.content {
            Some((_, items)) => load_items(items, &below, path.clone(), modules)?,
            None => load_file(&source_of(folder, &name), &below, path.clone(), modules)?,
        }
        modules.entry(path).or_default();
    }
    Ok(())
}

/// The file of the module `name`. The files of its parent's submodules are in `folder`.
fn source_of(folder: &Path, name: &str) -> PathBuf {
    let flat = folder.join(format!("{name}.rs"));
    if flat.is_file() { flat } else { folder.join(name).join("mod.rs") }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        _ => false,
    })
}
