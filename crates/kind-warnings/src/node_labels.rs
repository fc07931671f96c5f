//! Warnings about deprecated labels of nodes in selectors.
//!
//! Source: `pkg/api/node/util.go`.

use listwatch_meta::selector::label_value_problems;
use listwatch_schema::Path;
use listwatch_validation::{Object, child, objects, text, texts};

use crate::Warnings;

/// Returns the message for a deprecated label of nodes (`GetNodeLabelDeprecatedMessage`).
pub(crate) fn deprecation(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        "beta.kubernetes.io/os" => r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
        "failure-domain.beta.kubernetes.io/region" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        }
        "beta.kubernetes.io/instance-type" => {
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => "deprecated since v1.22; use Taints and Tolerations instead",
        "node-role.kubernetes.io/master" => r#"use "node-role.kubernetes.io/control-plane" instead"#,
        _ => return None,
    })
}

/// Warns of the expressions of a node selector term (`GetWarningsForNodeSelectorTerm`). `values_too` adds warnings about
/// values that are not label values. Validation accepts such values in preferences.
pub(crate) fn add_term(term: &Object, values_too: bool, at: &Path<'_>, warnings: &mut Warnings) {
    let at = at.child("matchExpressions");
    for (index, expression) in objects(term, "matchExpressions") {
        if warnings.is_full() {
            return;
        }
        let at = at.index(index);
        add_key(text(expression, "key"), &at, warnings);
        if values_too {
            let at = at.child("values");
            for (index, value) in texts(expression, "values").enumerate() {
                if warnings.is_full() {
                    return;
                }
                for problem in label_value_problems(value) {
                    warnings.add(format_args!("{}: {value} is invalid, {problem}", at.index(index)));
                }
            }
        }
    }
}

/// Warns of the keys of a label selector for nodes (`GetWarningsForNodeSelector`).
pub(crate) fn add_selector(selector: &Object, at: &Path<'_>, warnings: &mut Warnings) {
    let expressions_at = at.child("matchExpressions");
    for (index, expression) in objects(selector, "matchExpressions") {
        add_key(text(expression, "key"), &expressions_at.index(index), warnings);
    }
    let labels_at = at.child("matchLabels");
    for key in child(selector, "matchLabels").keys() {
        if let Some(why) = deprecation(key) {
            warnings.add(format_args!("{}: {why}", labels_at.child(key)));
        }
    }
}

fn add_key(key: &str, expression_at: &Path<'_>, warnings: &mut Warnings) {
    if let Some(why) = deprecation(key) {
        warnings.add(format_args!("{}: {key} is {why}", expression_at.child("key")));
    }
}
