//! Watches and lists of kubelets, served from a watch cache.
#![allow(dead_code)]

mod cache;
mod event;
mod frame;
mod history;
mod kind;
mod mailbox;
#[cfg(test)]
mod model;
mod object;
mod selector;
mod watchers;
mod wire;
