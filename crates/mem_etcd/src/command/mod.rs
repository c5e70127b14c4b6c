//! Subcommands, one file each.
//!
//! If the first argument has no leading dash, it is the name of a subcommand. A
//! subcommand has its own flags. Those of the server are in [`crate::config::Config`].

mod check;
mod repair;
mod restore;
mod snapshot;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::config;

/// A subcommand and its flags.
#[derive(Parser, Debug)]
#[command(name = "mem_etcd", args_override_self = true, disable_help_subcommand = true)]
enum Command {
    Check(check::Check),
    Repair(repair::Repair),
    Restore(restore::Restore),
    Snapshot(snapshot::Snapshot),
}

/// Whether `args` contain a subcommand. The first of `args` is the name of the program.
pub fn is_subcommand(args: &[String]) -> bool {
    args.get(1).is_some_and(|first| !first.starts_with('-'))
}

/// Runs the subcommand in `args`. Prints an error as one line.
pub fn run(args: Vec<String>) -> ExitCode {
    let command = match config::parse_args::<Command>(args) {
        Ok(command) => command,
        Err(exit) => return exit.report(),
    };
    match command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mem_etcd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Command::Check(check) => check.run(),
            Command::Repair(repair) => repair.run(),
            Command::Restore(restore) => restore.run(),
            Command::Snapshot(snapshot) => snapshot.run(),
        }
    }
}
