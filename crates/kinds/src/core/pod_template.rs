//! PodTemplate (`v1`): a stored pod template, which built-in controllers do not use.
//!
//! Source: `ValidatePodTemplate` in `pkg/apis/core/validation` and `printPodTemplate` of Kubernetes v1.36.

use listwatch_schema::Path;
use listwatch_validation::{Errors, Object, child, pod_spec};

use crate::Kind;
use crate::defaults::Default::In;
use crate::defaults::Defaults;
use crate::defaults::pod_spec::TEMPLATE;
use crate::printers::Printer;
use crate::printers::text::{containers, labels};
use crate::table::{Column, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &DEFAULTS,
    validate,
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
