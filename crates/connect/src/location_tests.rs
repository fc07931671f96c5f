//! Tests the targets of connect requests with tables of objects.

use listwatch_json::json;

use super::*;

fn id<'a>(kind: &'static str, text: &'a str) -> ProxyId<'a> {
    ProxyId::parse(kind, text).unwrap()
}

/// Formats a location as `via host port`, or as the code and the message of the error.
fn shown(location: Result<Location, LocationError>) -> String {
    match location {
        Ok(Location { via, host, port }) => format!("{via:?} {host} {port}"),
        Err(error) => {
            let status = Status::from(error);
            format!("{} {}", status.code, status.message)
        }
    }
}

fn types(types: &[&str]) -> Vec<String> {
    types.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn proxy_name_is_parsed_with_optional_scheme_and_port() {
    let check = |text: &str, expected: &str| {
        let found = match ProxyId::parse("pod", text) {
            Ok(ProxyId { is_https, name, port, .. }) => format!("{is_https} {name} {port}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected, "{text}");
    };
    check("a", "false a ");
    check("a:80", "false a 80");
    check("http:a:80", "false a 80");
    check("https:a:", "true a ");
    check(":a:web", "false a web");
    for invalid in ["", ":80", "https::80", "ftp:a:80", "HTTPS:a:80", "a:b:c:d"] {
        check(invalid, &format!("invalid pod request \"{invalid}\""));
    }
}

#[test]
fn container_defaults_to_the_only_container_and_unknown_names_are_rejected() {
    let pod = |containers: &[&str], others: &[&str]| {
        let named = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
        json!({"metadata": {"name": "p"}, "spec": {"containers": named(containers), "initContainers": named(others)}})
    };
    let check = |pod: &Value, name: &str, expected: &str| {
        let found = container(pod, name).map_or_else(|error| error.to_string(), str::to_owned);
        assert_eq!(found, expected, "{pod} {name}");
    };
    check(&pod(&["c"], &["i"]), "", "c");
    check(&pod(&["c"], &["i"]), "i", "i");
    check(&pod(&["c"], &["i"]), "x", "container x is not valid for pod p");
    check(&pod(&["c", "d"], &["i"]), "d", "d");
    let choose = "a container name must be specified for pod p, choose one of: [i c d]";
    check(&pod(&["c", "d"], &["i"]), "", choose);
    check(&pod(&[], &[]), "", "a container name must be specified for pod p");
    let debugged = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}],
        "ephemeralContainers": [{"name": "debugger"}]}});
    check(&debugged, "debugger", "debugger");
}

#[test]
fn kubelet_has_the_first_preferred_address_and_its_reported_port() {
    let node = |addresses: &[(&str, &str)], port: Value| {
        let addresses: Vec<_> = addresses.iter().map(|(kind, it)| json!({"type": kind, "address": it})).collect();
        json!({"status": {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
    };
    let default = types(&["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"]);
    let both = node(&[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("Hostname", "h")], json!(10_260));
    assert_eq!(shown(kubelet(&both, &default)), "Kubelet h 10260");
    assert_eq!(shown(kubelet(&both, &types(&["ExternalIP", "InternalIP"]))), "Kubelet 10.0.0.1 10260");
    let unknown = "500 no preferred addresses found; known addresses: ";
    let known = format!("{unknown}[{{InternalIP 10.0.0.1}} {{InternalIP fd00::1}} {{Hostname h}}]");
    assert_eq!(shown(kubelet(&both, &types(&["ExternalIP"]))), known);
    assert_eq!(shown(kubelet(&json!({}), &default)), format!("{unknown}[]"));
    for port in [json!(0), json!(-1), json!(70_000), Value::Null] {
        assert_eq!(shown(kubelet(&node(&[("Hostname", "h")], port), &default)), "Kubelet h 10250");
    }
}

#[test]
fn node_proxy_uses_the_client_certificate_only_for_the_kubelet_port() {
    let object = json!({"status": {"addresses": [{"type": "Hostname", "address": "h"}]}});
    let check = |text: &str, expected: &str| {
        assert_eq!(shown(node(&object, &id("node", text), &types(&["Hostname"]))), expected, "{text}");
    };
    check("n", "Kubelet h 10250");
    check("n:10250", "Kubelet h 10250");
    check("http:n:10250", "Kubelet h 10250");
    check("n:9100", "Http h 9100");
    check("https:n:9100", "Https h 9100");
    check("n:web", "400 invalid node request \"n:web\"");
    check("n:0", "400 invalid node request \"n:0\"");
}

#[test]
fn pod_proxy_uses_the_port_in_the_path_or_the_first_declared_port() {
    let with = |ip: &str, ports: Value| json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "ports": ports}]}, "status": {"podIPs": [{"ip": ip}]}});
    let declared = || json!([{"containerPort": 8_080}, {"containerPort": 9_090}]);
    let check = |text: &str, ip: &str, ports: Value, expected: &str| {
        assert_eq!(shown(pod(&with(ip, ports), &id("pod", text))), expected, "{text} {ip}");
    };
    check("p", "10.0.0.2", declared(), "Http 10.0.0.2 8080");
    check("https:p:", "10.0.0.2", declared(), "Https 10.0.0.2 8080");
    check("p:81", "10.0.0.2", declared(), "Http 10.0.0.2 81");
    check("p", "fd00::2", json!([]), "Http fd00::2 80");
    check("https:p:", "10.0.0.2", json!([]), "Https 10.0.0.2 443");
    check("p:70000", "10.0.0.2", json!([]), "400 invalid pod request \"p:70000\"");
    for refused in ["", "x", "127.0.0.1", "127.1.2.3", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255"] {
        check("p", refused, declared(), "400 address not allowed");
    }
    for refused in ["::", "::1", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"] {
        check("p", refused, declared(), "400 address not allowed");
    }
    assert_eq!(shown(pod(&json!({}), &id("pod", "p"))), "400 address not allowed");
}

#[test]
fn host_with_an_address_of_this_machine_is_not_proxyable() {
    let check = |addresses: &[&str], expected: Result<&str, LocationError>| {
        let found = proxyable(addresses.iter().map(|address| address.parse().unwrap()));
        assert_eq!(found, expected.map(|address| address.parse().unwrap()), "{addresses:?}");
    };
    check(&["10.0.0.1", "fd00::1"], Ok("10.0.0.1"));
    check(&["10.0.0.1", "127.0.0.1"], Err(LocationError::AddressNotAllowed));
    check(&["169.254.169.254"], Err(LocationError::AddressNotAllowed));
    check(&[], Err(LocationError::NoAddresses));
}

#[test]
fn service_port_is_found_by_its_number_or_its_name() {
    let service = json!({"spec": {"ports": [{"port": 80, "name": "web"}, {"port": 443}]}});
    let check = |text: &str, expected: &str| {
        let found = service_port(&service, &id("service", text));
        assert_eq!(found.map_or_else(|error| error.to_string(), str::to_owned), expected, "{text}");
    };
    check("s:80", "web");
    check("s:443", "");
    check("s:web", "web");
    check("s:other", "other");
    check("s", "");
    check("https:s:81", "no service port 81 found for service \"s\"");
}

#[test]
fn service_candidates_are_ready_addresses_of_pods_in_the_namespace() {
    let address = |ip: &str, namespace: &str, pod: &str| json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod}});
    let endpoints = json!({"metadata": {"namespace": "a"}, "subsets": [
        {"addresses": [address("10.0.0.1", "a", "one"), address("10.0.0.2", "a", "two"), {"ip": "10.0.0.3"},
            address("10.0.0.4", "b", "foreign"), address("169.254.169.254", "a", "link-local")],
         "ports": [{"name": "web", "port": 8_080}, {"name": "tls", "port": 8_443}]},
        {"notReadyAddresses": [address("10.0.0.5", "a", "late")], "ports": [{"name": "web", "port": 8_080}]},
    ]});
    let found = |text: &str, port: &str, chosen: usize| -> Vec<String> {
        let found = candidates(&endpoints, &id("service", text), port, |count| chosen % count).unwrap();
        found.into_iter().map(|it| format!("{} {}", it.pod, shown(Ok(it.location)))).collect()
    };
    assert_eq!(found("s", "web", 0), ["one Http 10.0.0.1 8080", "two Http 10.0.0.2 8080"]);
    assert_eq!(found("https:s:tls", "tls", 1), ["two Https 10.0.0.2 8443", "one Https 10.0.0.1 8443"]);
    assert_eq!(found("s", "", 0), [""; 0]);
    let nothing = json!({"subsets": []});
    let empty = candidates(&nothing, &id("service", "https:s:1"), "", |_| 0);
    assert_eq!(empty, Err(LocationError::NoEndpoints("s".to_owned())));
    assert_eq!(no_candidate(&id("service", "s:80")).to_string(), "no endpoints available for service \"s:80\"");
    let first = &candidates(&endpoints, &id("service", "s"), "web", |_| 0).unwrap()[0];
    assert!(first.is_address_of(&json!({"status": {"podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]}})));
    assert!(!first.is_address_of(&json!({"status": {"podIPs": [{"ip": "10.0.0.9"}]}})));
}

#[test]
fn leading_path_ends_with_the_subresource() {
    for path in ["", "/", "/a/../../../b", "/a%2Fb"] {
        let whole = format!("/api/v1/nodes/n/proxy{path}");
        assert_eq!(leading_path(&whole, 5), "/api/v1/nodes/n/proxy", "{path}");
    }
}

#[test]
fn node_address_with_path_user_or_port_is_rejected() {
    for (address, is_allowed) in [
        ("10.0.0.9", true),
        ("fd00::9", true),
        ("node-1.example", true),
        ("10.0.0.9/any/path?x=", false),
        ("user@10.0.0.9", false),
        ("10.0.0.9:443", false),
        ("", false),
    ] {
        let node = json!({"status": {"addresses": [{"type": "Hostname", "address": address}]}});
        assert_eq!(kubelet(&node, &["Hostname".to_owned()]).is_ok(), is_allowed, "{address:?}");
    }
}

#[test]
fn service_with_many_addresses_has_a_bounded_number_of_candidates() {
    let address = json!({"ip": "10.0.0.9", "targetRef": {"namespace": "ns", "name": "p"}});
    let ports: Vec<_> = (0..1_000).map(|_| json!({"name": "web", "port": 80})).collect();
    let subset = json!({"addresses": vec![address; 1_000], "ports": ports});
    let endpoints = json!({"metadata": {"namespace": "ns"}, "subsets": [subset.clone(), subset]});
    assert_eq!(candidates(&endpoints, &id("service", "s:web"), "web", |_| 0).unwrap().len(), CANDIDATES_MAX);
}
