//! NetworkPolicy (`networking.k8s.io/v1`): the allowed traffic of pods.
//!
//! Source: `pkg/registry/networking/networkpolicy/strategy.go`, `ValidateNetworkPolicy` in
//! `pkg/apis/networking/validation`.

use std::collections::HashSet;

use listwatch_json::{Value, json};
use listwatch_schema::Path;
use listwatch_validation::field_rules::one_of_if_present;
use listwatch_validation::formats::{
    Range, is_invalid_selector, json as go_json, label_selector, legacy_cidr, port_name, port_number,
};
use listwatch_validation::{Errors, Object, child, given, items, number, objects, text};

use crate::Kind;
use crate::defaults::Default::{Each, From, In, Text};
use crate::defaults::Defaults;
use crate::kind::StoredText::Always;
use listwatch_printers::Printer;
use listwatch_printers::text::selector_cell;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    short_names: &["netpol"],
    generation: true,
    defaults: &DEFAULTS,
    stored_texts: &[Always(r#""policyTypes":["#)],
    validate,
    warnings: listwatch_kind_warnings::networking::of_network_policy,
    printer: &PRINTER,
    ..Kind::namespaced("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
};

static PORT_DEFAULTS: Defaults = Defaults(&[("protocol", Text("TCP"))]);
static RULE_DEFAULTS: Defaults = Defaults(&[("ports", Each(&PORT_DEFAULTS))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[
    ("ingress", Each(&RULE_DEFAULTS)),
    ("egress", Each(&RULE_DEFAULTS)),
    (
        "policyTypes",
        From(|spec| {
            let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            Some(if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) })
        }),
    ),
]);

static DEFAULTS: Defaults = Defaults(&[("spec", In(&SPEC_DEFAULTS))]);

fn validate(policy: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(policy, "spec");
    let at = Path::root("spec");
    // A range that the stored policy has anywhere is valid everywhere.
    let known: HashSet<&str> = old.map(|old| ranges(child(old, "spec")).collect()).unwrap_or_default();
    let values_too = old.is_none_or(|old| !is_invalid_selector(child(old, "spec").get("podSelector")));
    label_selector(spec.get("podSelector"), values_too, &at.child("podSelector"), errors);
    for (rules, peers) in RULES {
        let rules_at = at.child(rules);
        for (index, rule) in objects(spec, rules) {
            let at = rules_at.index(index);
            let ports_at = at.child("ports");
            for (index, port) in objects(rule, "ports") {
                validate_port(port, &ports_at.index(index), errors);
            }
            let peers_at = at.child(peers);
            for (index, peer) in objects(rule, peers) {
                validate_peer(peer, &known, values_too, &peers_at.index(index), errors);
            }
        }
    }
    let (types, types_at) = (items(spec, "policyTypes"), at.child("policyTypes"));
    if types.len() > 2 {
        errors.invalid_value(&types_at, go_json(spec.get("policyTypes")), "may not specify more than two policyTypes");
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        if !matches!(kind, "Ingress" | "Egress") {
            errors.not_supported(&types_at.index(index), kind, &["Ingress", "Egress"]);
        }
    }
}

/// The lists of rules, and the member that lists the peers of a rule.
const RULES: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// All ranges of a policy.
fn ranges(spec: &Object) -> impl Iterator<Item = &str> {
    RULES.into_iter().flat_map(move |(rules, peers)| {
        objects(spec, rules).flat_map(move |(_, rule)| {
            objects(rule, peers).flat_map(|(_, peer)| {
                let block = child(peer, "ipBlock");
                items(block, "except").iter().filter_map(Value::as_str).chain([text(block, "cidr")])
            })
        })
    })
}

fn validate_port(port: &Object, at: &Path<'_>, errors: &mut Errors) {
    one_of_if_present(port, "protocol", &["TCP", "UDP", "SCTP"], at, errors);
    let (last, last_at) = (number(port, "endPort"), at.child("endPort"));
    match (given(port, "port"), last) {
        (Some(Value::String(name)), _) => {
            if let Some(last) = last {
                errors.invalid_value(&last_at, last, "may not be specified when `port` is non-numeric");
            }
            port_name(name, &at.child("port"), errors);
        }
        (Some(first), _) => {
            let first = first.as_i64().unwrap_or(0);
            port_number(first, &at.child("port"), errors);
            if let Some(last) = last {
                if last < first {
                    // Upstream shows the first port.
                    errors.invalid_value(&last_at, first, "must be greater than or equal to `port`");
                }
                port_number(last, &last_at, errors);
            }
        }
        (None, Some(last)) => errors.invalid_value(&last_at, last, "may not be specified when `port` is not specified"),
        (None, None) => {}
    }
}

fn validate_peer(peer: &Object, known: &HashSet<&str>, values_too: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut peers = 0;
    for name in ["podSelector", "namespaceSelector"] {
        if let Some(selector) = given(peer, name) {
            peers += 1;
            label_selector(Some(selector), values_too, &at.child(name), errors);
        }
    }
    let block = given(peer, "ipBlock").and_then(Value::as_object);
    if let Some(block) = block {
        peers += 1;
        validate_ip_block(block, known, &at.child("ipBlock"), errors);
    }
    if peers == 0 {
        errors.required(at, "must specify a peer");
    } else if peers > 1 && block.is_some() {
        errors.forbidden(at, "may not specify both ipBlock and another peer");
    }
}

fn validate_ip_block(block: &Object, known: &HashSet<&str>, at: &Path<'_>, errors: &mut Errors) {
    let cidr = text(block, "cidr");
    if cidr.is_empty() {
        errors.required(&at.child("cidr"), "");
        return;
    }
    if !known.contains(cidr) {
        legacy_cidr(cidr, &at.child("cidr"), errors);
    }
    let Some(range) = Range::parse(cidr) else { return };
    let except_at = at.child("except");
    for (index, except) in items(block, "except").iter().enumerate() {
        let (except, at) = (except.as_str().unwrap_or_default(), except_at.index(index));
        if !known.contains(except) {
            legacy_cidr(except, &at, errors);
        }
        if Range::parse(except).is_some_and(|inner| !range.is_strictly_above(inner)) {
            errors.invalid(&at, except, "must be a strict subset of `cidr`");
        }
    }
}

static PRINTER: Printer = Printer {
    columns: &[NAME, Column::text("Pod-Selector", "The pods that the policy is for."), AGE],
    cells: |policy| {
        let pods = selector_cell(policy.at("spec.podSelector"));
        vec![policy.name().into(), pods.into(), policy.age().into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use crate::testing::check_defaults;

    use super::*;

    #[test]
    fn policy_types_default_to_the_directions_of_the_rules() {
        check_defaults(
            &KIND,
            json!({"spec": {"egress": [{"ports": [{"port": 1}]}]}}),
            json!({"spec": {"egress": [{"ports": [{"port": 1, "protocol": "TCP"}]}], "policyTypes": ["Ingress", "Egress"]}}),
        );
    }
}
