//! PodTemplate (`v1`): a stored pod template, which built-in controllers do not use.
//!
//! Source: `ValidatePodTemplate` in `pkg/apis/core/validation` and `printPodTemplate` of Kubernetes v1.36.

use listwatch_schema::Path;
use listwatch_validation::{Errors, Object, child, pod_spec};

use crate::Kind;
use crate::defaults::Default::In;
use crate::defaults::Defaults;
use crate::defaults::pod_spec::TEMPLATE;
use listwatch_printers::Printer;
use listwatch_printers::text::{containers, labels};
use listwatch_printers::{Column, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &DEFAULTS,
    pod_spec: &["template", "spec"],
    validate,
    warnings: listwatch_kind_warnings::workload::of_pod_template,
    printer: &PRINTER,
    returns_deleted: true,
    ..Kind::namespaced("", "v1", "podtemplates", "PodTemplate")
};

static DEFAULTS: Defaults = Defaults(&[("template", In(&TEMPLATE))]);

/// Validates a pod template (`ValidatePodTemplate`).
fn validate(object: &Object, old: Option<&Object>, errors: &mut Errors) {
    let old = old.map(|old| child(old, "template"));
    pod_spec::validate_template(child(object, "template"), old, &Path::root("template"), errors);
}

static PRINTER: Printer = Printer {
    columns: &[
        NAME,
        Column::text("Containers", "The names of the template's containers."),
        Column::text("Images", "The images of the template's containers."),
        Column::text("Pod Labels", "The labels that pods of this template get."),
    ],
    cells: |template| {
        let (names, images) = containers(template.get("template"));
        let labels = labels(template.at("template.metadata.labels"));
        vec![template.name().into(), names.into(), images.into(), labels.into()]
    },
};

#[cfg(test)]
mod tests {
    use listwatch_json::{Value, json};
    use listwatch_meta::FieldError;

    use super::*;
    use crate::testing::map;

    #[test]
    fn template_with_a_stored_invalid_deletion_cost_can_be_updated() {
        const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
        let template =
            |cost: &str| json!({"metadata": {"labels": {"a": "b"}, "annotations": {COST: cost}}, "spec": {}});
        let stateful = |template: Value| json!({"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
        let reported = |kind: &Kind, new: Value, old: Value| {
            let mut errors = Errors::default();
            (kind.validate)(&map(new), Some(&map(old)), &mut errors);
            errors.iter().map(FieldError::to_string).any(|error| error.contains(COST))
        };
        for (old, expected) in [("x", false), ("1", true)] {
            let (new, old) = (template("x"), template(old));
            assert_eq!(reported(&KIND, json!({ "template": new }), json!({ "template": old })), expected, "{old}");
            let kind = &crate::apps::stateful_set::KIND;
            assert_eq!(reported(kind, stateful(new), stateful(old.clone())), expected, "{old}");
        }
    }
}
