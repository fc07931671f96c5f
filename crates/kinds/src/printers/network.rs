//! Services and what leads to them.

use super::text::{NONE, joined, labels, or, selector_cell};
use super::{Printed, Printer};
use crate::table::Cell;
use crate::table::Json;
use crate::table::{AGE, Column, NAME};

/// How many of many a cell shows.
const SHOWN_MAX: usize = 3;

pub(crate) static SERVICE: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Type", "How the service is reached."),
        Column::text("Cluster-IP", "The address inside the cluster."),
        Column::text("External-IP", "The addresses outside the cluster."),
        Column::text("Port(s)", "The ports, with their node ports."),
        AGE,
        Column::wide("Selector", "The labels of the pods behind the service."),
    ],
    cells: |service| {
        let spec = service.spec();
        // One address is an older field than several.
        let cluster_ip =
            spec.get("clusterIPs").items().first().map_or_else(|| spec.get("clusterIP"), |address| *address);
        vec![
            service.name().into(),
            spec.get("type").string_or("ClusterIP").into(),
            cluster_ip.string_or(NONE).into(),
            external_ip(service).into(),
            or(ports(spec.get("ports")), NONE).into(),
            service.age().into(),
            labels(spec.get("selector")).into(),
        ]
    },
};

fn external_ip(service: Printed<'_>) -> String {
    let spec = service.spec();
    let external = joined(spec.get("externalIPs"), ",");
    match spec.get("type").string_or("ClusterIP").as_str() {
        "ClusterIP" | "NodePort" => or(external, NONE),
        "LoadBalancer" => {
            let balancers = balancers(service.at("status.loadBalancer.ingress"));
            match (balancers.as_str(), external.as_str()) {
                ("", "") => "<pending>".to_owned(),
                ("", _) => external,
                (_, "") => balancers,
                _ => format!("{balancers},{external}"),
            }
        }
        "ExternalName" => spec.get("externalName").string(),
        _ => "<unknown>".to_owned(),
    }
}

/// The addresses of load balancers, sorted.
fn balancers(ingress: Json<'_>) -> String {
    let address = |ingress: &Json<'_>| or(ingress.get("ip").string(), &ingress.get("hostname").string());
    let mut addresses: Vec<String> = ingress.items().iter().map(address).filter(|text| !text.is_empty()).collect();
    addresses.sort();
    addresses.dedup();
    addresses.join(",")
}

fn ports(ports: Json<'_>) -> String {
    let port = |port: Json<'_>| {
        let number = port.get("port").int().unwrap_or(0);
        let protocol = port.get("protocol").string_or("TCP");
        match port.get("nodePort").int() {
            Some(node_port @ 1..) => format!("{number}:{node_port}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    };
    ports.items().into_iter().map(port).collect::<Vec<_>>().join(",")
}

pub(crate) static INGRESS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Class", "The class whose controller serves this."),
        Column::text("Hosts", "The hosts that the rules are for."),
        Column::text("Address", "Where the load balancer listens."),
        Column::text("Ports", "The ports that are open: 443 with TLS."),
        AGE,
    ],
    cells: |ingress| {
        let spec = ingress.spec();
        vec![
            ingress.name().into(),
            spec.get("ingressClassName").string_or(NONE).into(),
            hosts(spec.get("rules")).into(),
            balancers(ingress.at("status.loadBalancer.ingress")).into(),
            if spec.get("tls").len() > 0 { "80, 443" } else { "80" }.into(),
            ingress.age().into(),
        ]
    },
};

/// The hosts of the rules. "More" counts rules, with or without a host, as kubectl always has.
fn hosts(rules: Json<'_>) -> String {
    let rules = rules.items();
    let (mut hosts, mut more) = (Vec::new(), false);
    for rule in &rules {
        more |= hosts.len() == SHOWN_MAX;
        let host = rule.get("host").string();
        if !more && !host.is_empty() {
            hosts.push(host);
        }
    }
    match (hosts.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => hosts.join(","),
        (false, true) => format!("{} + {} more...", hosts.join(","), rules.len() - SHOWN_MAX),
    }
}

pub(crate) static INGRESS_CLASS: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Controller", "Who serves ingresses of this class."),
        Column::text("Parameters", "An object with more settings."),
        AGE,
    ],
    cells: |class| {
        let parameters = class.at("spec.parameters");
        let parameters = if parameters.exists() {
            let group = parameters.get("apiGroup").text().map_or(String::new(), |group| format!(".{group}"));
            format!("{}{group}/{}", parameters.get("kind").string(), parameters.get("name").string())
        } else {
            NONE.to_owned()
        };
        let default = class.annotation("ingressclass.kubernetes.io/is-default-class").is("true");
        vec![
            format!("{}{}", class.name(), if default { " (default)" } else { "" }).into(),
            class.at("spec.controller").string().into(),
            parameters.into(),
            class.age().into(),
        ]
    },
};

pub(crate) static NETWORK_POLICY: Printer = Printer {
    columns: &[NAME, Column::text("Pod-Selector", "The pods that the policy is for."), AGE],
    cells: |policy| {
        let pods = selector_cell(policy.at("spec.podSelector"));
        vec![policy.name().into(), pods.into(), policy.age().into()]
    },
};

pub(crate) static SERVICE_CIDR: Printer = Printer {
    columns: &[NAME, Column::text("CIDRs", "The ranges that service addresses come from."), AGE],
    cells: |cidr| vec![cidr.name().into(), joined(cidr.at("spec.cidrs"), ",").into(), cidr.age().into()],
};

pub(crate) static IP_ADDRESS: Printer = Printer {
    columns: &[NAME, Column::text("ParentRef", "The object that has the address."), AGE],
    cells: |address| {
        let parent = address.at("spec.parentRef");
        let parent_text = if parent.exists() {
            let [group, resource, namespace, name] =
                ["group", "resource", "namespace", "name"].map(|key| parent.get(key).string());
            let resource = if group.is_empty() { resource } else { format!("{resource}.{group}") };
            let namespace = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
            format!("{}{namespace}/{name}", resource.to_lowercase())
        } else {
            NONE.to_owned()
        };
        let cells: [Cell; 3] = [address.name().into(), parent_text.into(), address.age().into()];
        cells.into()
    },
};
