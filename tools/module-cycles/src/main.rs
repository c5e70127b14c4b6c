//! Finds import cycles between the modules of a crate.
//!
//! ```sh
//! cargo run -p module-cycles -- crates/*
//! ```
//!
//! Each argument is the folder of a crate. A module imports another module if its code, apart
//! from tests, uses an item of the other module. A re-exported item is an item of the module
//! that defines it, and a re-export alone is not an import. The program prints one line for each
//! import cycle that it finds. It exits with code 1 if it finds one or cannot read a crate.

mod cycle;
mod imports;
mod module;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut failed = false;
    for folder in std::env::args().skip(1) {
        match check(Path::new(&folder)) {
            Ok(cycles) => {
                failed |= !cycles.is_empty();
                for cycle in cycles {
                    println!("{folder}: import cycle: {}", cycle.join(" -> "));
                }
            }
            Err(error) => {
                failed = true;
                eprintln!("module-cycles: {folder}: {error:#}");
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Returns the import cycles of the crate in `folder`. Each is a list of module names that
/// begins and ends with the same module.
fn check(folder: &Path) -> anyhow::Result<Vec<Vec<String>>> {
    let modules = module::load(folder)?;
    Ok(cycle::find_cycles(&imports::find_imports(&modules)))
}

#[cfg(test)]
mod tests {
    use super::check;

    /// Writes a crate with `files` and returns its import cycles.
    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join("src").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        check(folder.path()).unwrap()
    }

    #[test]
    fn two_modules_that_import_each_other() {
        let found = cycles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f(_: &super::a::A) {}"),
        ]);
        assert_eq!(found, [["crate::a", "crate::b", "crate::a"]]);
    }

    #[test]
    fn imports_in_groups_and_macros_count() {
        let found = cycles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::{b::{self, B}}; pub fn a(_: B) { b::b() }"),
            ("b.rs", "pub struct B; pub fn b() { println!(\"{}\", crate::a::a(B)); }"),
        ]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_re_exported_item_counts_where_it_is_defined() {
        let found = cycles(&[
            ("lib.rs", "mod a; mod error; pub use a::A; pub use error::Error;"),
            ("a.rs", "use crate::Error; pub struct A(Error);"),
            ("error.rs", "pub struct Error;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_parent_and_a_child_that_import_each_other() {
        let found = cycles(&[
            ("main.rs", "mod a; fn main() { a::run() } pub fn help() {}"),
            ("a/mod.rs", "pub fn run() { crate::help() }"),
        ]);
        assert_eq!(found, [["crate", "crate::a", "crate"]]);
    }

    #[test]
    fn imports_in_one_direction_and_imports_in_tests_are_not_a_cycle() {
        let found = cycles(&[
            ("lib.rs", "pub mod a; pub mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; fn f(_: A) {} }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
