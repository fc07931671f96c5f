//! IngressClass (`networking.k8s.io/v1`): the controller that serves a set of Ingresses.
//!
//! Source: `pkg/registry/networking/ingressclass/strategy.go`, `ValidateIngressClass` in
//! `pkg/apis/networking/validation`.

use listwatch_json::Value;
use listwatch_schema::Path;
use listwatch_validation::formats::{self, IMMUTABLE};
use listwatch_validation::{Errors, Object, child, given, text};

use crate::defaults::Default::{If, Text};
use crate::defaults::Defaults;
use crate::kind::StoredText::With;
use crate::networking::references::validate_local_reference;
use crate::{Kind, Unenforced, UnenforcedPart};
use listwatch_printers::Printer;
use listwatch_printers::text::NONE;
use listwatch_printers::{AGE, Column, NAME};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &DEFAULTS,
    stored_texts: &[With(r#""parameters":{"#, r#""scope":""#)],
    validate,
    printer: &PRINTER,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Annotation("ingressclass.kubernetes.io/is-default-class"),
        consequence: "ingresses without a class do not get it as their default",
    }),
    ..Kind::cluster("networking.k8s.io", "v1", "ingressclasses", "IngressClass")
};

/// The largest size of the name of a controller, in bytes.
const CONTROLLER_BYTES_MAX: usize = 250;

static PARAMETERS_DEFAULTS: Defaults = Defaults(&[("scope", Text("Cluster"))]);

static SPEC_DEFAULTS: Defaults = Defaults(&[("parameters", If(&PARAMETERS_DEFAULTS))]);

static DEFAULTS: Defaults = Defaults(&[("spec", If(&SPEC_DEFAULTS))]);

fn validate(class: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(class, "spec");
    let at = Path::root("spec");
    let (controller, controller_at) = (text(spec, "controller"), at.child("controller"));
    if old.is_some_and(|old| text(child(old, "spec"), "controller") != controller) {
        errors.invalid(&controller_at, controller, IMMUTABLE);
    }
    if controller.len() > CONTROLLER_BYTES_MAX {
        errors.too_long(&controller_at, CONTROLLER_BYTES_MAX);
    }
    formats::domain_prefixed_path(controller, &controller_at, errors);
    let Some(Value::Object(parameters)) = given(spec, "parameters") else { return };
    let at = at.child("parameters");
    validate_local_reference(parameters, &at, errors);
    let namespace_at = at.child("namespace");
    let namespace = given(parameters, "namespace").and_then(Value::as_str);
    match given(parameters, "scope").and_then(Value::as_str) {
        None => errors.required(&at.child("scope"), ""),
        Some("Cluster") => {
            if namespace.is_some() {
                errors.forbidden(&namespace_at, "`parameters.scope` is set to 'Cluster'");
            }
        }
        Some("Namespace") => match namespace {
            None => errors.required(&namespace_at, "`parameters.scope` is set to 'Namespace'"),
            Some(namespace) => formats::label(namespace, &namespace_at, errors),
        },
        Some(other) => errors.not_supported(&at.child("scope"), other, &["Cluster", "Namespace"]),
    }
}

static PRINTER: Printer = Printer {
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
