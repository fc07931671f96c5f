//! Warnings about ports of containers that other ports of the pod conflict with.
//!
//! Source: `warningsForPodSpecAndMeta` in `pkg/api/pod/warnings.go`.

use std::collections::HashMap;

use listwatch_meta::go::quote;
use listwatch_schema::Path;
use listwatch_validation::{Object, number, objects, text};

use crate::Warnings;
use crate::containers::LISTS;

/// The largest number of pairs of ports that are compared. Later ports are not compared.
const PORT_PAIRS_MAX: usize = 100_000;

/// A port with its position in the spec.
#[derive(Clone, Copy)]
struct Port<'a> {
    list: &'static str,
    container: usize,
    index: usize,
    /// The number and the protocol. Only ports with equal keys can conflict.
    key: (i64, &'a str),
    host_port: i64,
    host_ip: &'a str,
    name: &'a str,
}

impl Port<'_> {
    fn path(&self, spec_at: &Path<'_>) -> String {
        spec_at.child(self.list).index(self.container).child("ports").index(self.index).to_string()
    }

    /// Describes the conflict of two ports with equal keys.
    fn conflict(&self, other: &Port<'_>) -> Option<&'static str> {
        if self.host_ip == other.host_ip && self.host_port == other.host_port {
            Some("duplicate")
        } else if self.host_port == 0 || other.host_port == 0 {
            Some("overlapping")
        } else if self.host_port == other.host_port && self.host_ip.is_empty() != other.host_ip.is_empty() {
            Some("dangerously ambiguous")
        } else {
            None
        }
    }
}

/// Adds the warnings of the ports of all containers.
pub(crate) fn add_ports(spec: &Object, spec_at: &Path<'_>, warnings: &mut Warnings) {
    let ports: Vec<Port<'_>> = each_port(spec).collect();
    if ports.is_empty() {
        return;
    }
    let mut conflicts = conflicts(&ports);
    conflicts.sort_unstable_by_key(|(position, other, _)| (*position, *other));
    let mut conflicts = conflicts.into_iter().peekable();
    for (position, port) in ports.iter().enumerate() {
        if !port.host_ip.is_empty() && port.host_port == 0 {
            let (at, (number, protocol), Port { name, host_port, host_ip, .. }) = (port.path(spec_at), port.key, port);
            warnings.add(format_args!(
                "{at}: hostIP set without hostPort: {{Name:{name} HostPort:{host_port} ContainerPort:{number} Protocol:{protocol} HostIP:{host_ip}}}"
            ));
        }
        if warnings.is_full() {
            return;
        }
        while let Some((_, other, conflict)) = conflicts.next_if(|(of, ..)| *of == position) {
            let other = ports.get(other).map(|other| other.path(spec_at)).unwrap_or_default();
            warnings.add(format_args!("{}: {conflict} port definition with {other}", port.path(spec_at)));
        }
    }
    if ports.len() > 1 {
        add_names(&ports, spec_at, warnings);
    }
}

fn each_port(spec: &Object) -> impl Iterator<Item = Port<'_>> {
    LISTS.into_iter().flat_map(move |list| {
        objects(spec, list).flat_map(move |(container, holder)| {
            objects(holder, "ports").map(move |(index, port)| Port {
                list,
                container,
                index,
                key: (number(port, "containerPort").unwrap_or(0), text(port, "protocol")),
                host_port: number(port, "hostPort").unwrap_or(0),
                host_ip: text(port, "hostIP"),
                name: text(port, "name"),
            })
        })
    })
}

/// Finds the conflicts: the positions of a port and of an earlier port, and the kind of the conflict.
fn conflicts(ports: &[Port<'_>]) -> Vec<(usize, usize, &'static str)> {
    let mut found = Vec::new();
    if ports.len() < 2 {
        return found;
    }
    let mut order: Vec<(usize, &Port<'_>)> = ports.iter().enumerate().collect();
    order.sort_by_key(|(_, port)| port.key);
    let mut pairs = PORT_PAIRS_MAX;
    for group in order.chunk_by(|(_, left), (_, right)| left.key == right.key) {
        for (place, (position, port)) in group.iter().enumerate() {
            for (other_position, other) in group.iter().take(place) {
                if pairs == 0 {
                    return found;
                }
                pairs -= 1;
                found.extend(port.conflict(other).map(|conflict| (*position, *other_position, conflict)));
            }
        }
    }
    found
}

fn add_names(ports: &[Port<'_>], spec_at: &Path<'_>, warnings: &mut Warnings) {
    let mut first: HashMap<&str, &Port<'_>> = HashMap::new();
    for port in ports.iter().filter(|port| !port.name.is_empty()) {
        if let Some(first) = first.get(port.name) {
            if warnings.is_full() {
                return;
            }
            let (at, name, first) = (port.path(spec_at), quote(port.name), first.path(spec_at));
            warnings.add(format_args!(
                "{at}: duplicate port name {name} with {first}, services and probes that select ports by name will use {first}"
            ));
        } else {
            first.insert(port.name, port);
        }
    }
}
