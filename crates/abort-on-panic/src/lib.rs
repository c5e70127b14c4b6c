//! Ends a program at the first panic of any of its threads.
//!
//! Release builds do that by themselves (`panic = "abort"`). The programs of `make test` share their crates with the
//! tests, which need panics that unwind. Without this crate, such a program would lose a thread or a task, and go on.

#![warn(missing_docs)]

/// Makes each panic of this process print its message and abort the process. Call it once, first in `main`.
pub fn install() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}
