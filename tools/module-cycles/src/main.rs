//! Finds circles of imports between the modules of a crate.
//!
//! ```sh
//! cargo run -p module-cycles -- crates/*
//! ```
//!
//! Each argument is the folder of a crate. A module imports another when its
//! code, apart from tests, names an item of it. An item that the named module
//! only re-exports counts as an item of the module that defines it, and a
//! re-export by itself is no import. The program prints one line for each
//! circle and exits with 1 if there is one.

mod circle;
mod imports;
mod module;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut failed = false;
    for folder in std::env::args().skip(1) {
        match check(Path::new(&folder)) {
            Ok(circles) => {
                failed |= !circles.is_empty();
                for circle in circles {
                    println!("{folder}: circle of imports: {}", circle.join(" -> "));
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

/// Returns the circles of the crate in `folder`, each as a list of module paths
/// that begins and ends with the same module.
fn check(folder: &Path) -> anyhow::Result<Vec<Vec<String>>> {
    let modules = module::load(folder)?;
    Ok(circle::find(&imports::between(&modules)))
}

#[cfg(test)]
mod tests {
    use super::check;

    /// Writes a crate with `files` and returns its circles.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
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
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f(_: &super::a::A) {}"),
        ]);
        assert_eq!(found, [["crate::a", "crate::b", "crate::a"]]);
    }

    #[test]
    fn imports_in_groups_and_macros_count() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::{b::{self, B}}; pub fn a(_: B) { b::b() }"),
            ("b.rs", "pub struct B; pub fn b() { println!(\"{}\", crate::a::a(B)); }"),
        ]);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_re_exported_item_counts_where_it_is_defined() {
        let found = circles(&[
            ("lib.rs", "mod a; mod error; pub use a::A; pub use error::Error;"),
            ("a.rs", "use crate::Error; pub struct A(Error);"),
            ("error.rs", "pub struct Error;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_child_that_uses_an_item_of_a_parent_that_uses_the_child() {
        let found = circles(&[
            ("main.rs", "mod a; fn main() { a::run() } pub fn help() {}"),
            ("a/mod.rs", "pub fn run() { crate::help() }"),
        ]);
        assert_eq!(found, [["crate", "crate::a", "crate"]]);
    }

    #[test]
    fn tests_and_one_way_imports_are_no_circle() {
        let found = circles(&[
            ("lib.rs", "pub mod a; pub mod b;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; fn f(_: A) {} }"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
