//! The connections of nodes that have one of their own, with the watches of a kubelet.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls_pki_types::ServerName;
use tokio_rustls::rustls::RootCertStore;

use crate::certificates::Authority;
use crate::client::{Endpoint, Link, client_config};
use crate::kubeconfig::Kubeconfig;
use crate::sim::{ObjectKind, WatchedObject};

use super::reflector::Reflector;
use super::resource::{ALL, Resource};
use super::tag::{Tag, WatchId};

/// Connections from each loopback address. Linux has about 28,000 local ports for each.
const CONNECTIONS_PER_ADDRESS: u32 = 20_000;

/// The connections of nodes.
pub struct Wires {
    address: String,
    server_name: ServerName<'static>,
    roots: Arc<RootCertStore>,
    authority: Option<Authority>,
    open: HashMap<u32, Wire>,
    next_session: u32,
}

/// The connection of a node and its watches.
struct Wire {
    session: u32,
    link: Rc<Link<Tag>>,
    reflectors: Box<[Reflector]>,
    /// The watches of ConfigMaps and Secrets, by the number of the object.
    objects: HashMap<u32, Object>,
}

/// The watch of a ConfigMap or a Secret.
struct Object {
    reflector: Reflector,
    namespace: Box<str>,
    name: Box<str>,
}

impl Wires {
    /// No connection is open.
    pub fn new(kubeconfig: &Kubeconfig, authority: Option<Authority>) -> Wires {
        Wires {
            address: kubeconfig.address.clone(),
            server_name: kubeconfig.server_name.clone(),
            roots: Arc::new(kubeconfig.roots.clone()),
            authority,
            open: HashMap::new(),
            next_session: 0,
        }
    }

    /// The connection of a node.
    pub fn link(&self, node: u32) -> Option<Rc<Link<Tag>>> {
        self.open.get(&node).map(|wire| wire.link.clone())
    }

    /// A watch, unless the connection was replaced.
    pub fn reflector(&mut self, node: u32, id: WatchId) -> Option<&mut Reflector> {
        let wire = self.open.get_mut(&node).filter(|wire| wire.session == id.session)?;
        if id.object != 0 {
            return wire.objects.get_mut(&id.object).map(|object| &mut object.reflector);
        }
        let place = ALL.iter().position(|it| *it == id.resource)?;
        wire.reflectors.get_mut(place)
    }

    /// Adds the watch of an object. Returns `None` if the connection of the node is closed.
    pub fn add_object(&mut self, node: u32, object: WatchedObject) -> Option<WatchId> {
        let wire = self.open.get_mut(&node)?;
        let resource = match object.kind {
            ObjectKind::ConfigMap => Resource::ConfigMaps,
            ObjectKind::Secret => Resource::Secrets,
        };
        let reflector = Reflector::new(resource, true);
        let WatchedObject { id, namespace, name, .. } = object;
        wire.objects.insert(id, Object { reflector, namespace, name });
        Some(WatchId { object: id, ..WatchId::of_node(node, wire.session, resource) })
    }

    /// Removes the watch of an object. Returns `None` if the connection of the node is closed.
    pub fn remove_object(&mut self, node: u32, object: u32) -> Option<WatchId> {
        let wire = self.open.get_mut(&node)?;
        let resource = wire.objects.remove(&object)?.reflector.resource();
        Some(WatchId { object, ..WatchId::of_node(node, wire.session, resource) })
    }

    /// The path of the watch of an object.
    pub fn object_path(&self, id: WatchId, version: Option<u64>, seconds: u32) -> Option<String> {
        let Object { namespace, name, .. } = self.open.get(&id.node?)?.objects.get(&id.object)?;
        Some(id.resource.object_path(namespace, name, version, seconds))
    }

    /// Closes the connection of a node.
    pub fn close(&mut self, node: u32) {
        if let Some(wire) = self.open.remove(&node) {
            wire.link.close();
        }
    }

    /// Adds the connection of a node, in place of one that it may have. Returns its number.
    ///
    /// # Errors
    /// If there is no CA, or it cannot sign.
    pub fn open(&mut self, node: u32, name: &str) -> Result<u32> {
        self.close(node);
        let link = Link::new(Rc::new(self.endpoint(node, name)?));
        // The shared watch of nodes shows all Nodes to the simulation.
        let reflector = |it: &Resource| Reflector::new(*it, *it == Resource::Pods);
        let reflectors = ALL.iter().map(reflector).collect();
        self.next_session = self.next_session.wrapping_add(1);
        let session = self.next_session;
        self.open.insert(node, Wire { session, link, reflectors, objects: HashMap::new() });
        Ok(session)
    }

    fn endpoint(&self, node: u32, name: &str) -> Result<Endpoint> {
        let authority =
            self.authority.as_ref().context("there is no CA for client certificates")?;
        let certificate = authority.issue(name)?;
        let tls = client_config(self.roots.clone(), Some(certificate))?;
        let (address, server_name) = (self.address.clone(), self.server_name.clone());
        let mut endpoint = Endpoint::new(address, server_name, tls);
        endpoint.source = source(&self.address, node);
        Ok(endpoint)
    }
}

/// The address from which a node connects to a server on this machine.
fn source(server: &str, node: u32) -> Option<Ipv4Addr> {
    let server: SocketAddr = server.parse().ok()?;
    match server.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => {
            Some((u32::from(Ipv4Addr::LOCALHOST) + node / CONNECTIONS_PER_ADDRESS).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_have_several_addresses() {
        let source = |node| source("127.0.0.1:6443", node).unwrap().to_string();
        assert_eq!(source(19_999), "127.0.0.1");
        assert_eq!(source(20_000), "127.0.0.2");
        assert_eq!(super::source("10.0.0.1:6443", 5), None);
        assert_eq!(super::source("host:6443", 5), None);
    }
}
