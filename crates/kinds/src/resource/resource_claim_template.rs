//! ResourceClaimTemplate (`resource.k8s.io/v1`): the template of the claims that are created for pods.
//!
//! Source: `pkg/registry/resource/resourceclaimtemplate/strategy.go`, `ValidateResourceClaimTemplate` in
//! `pkg/apis/resource/validation`.

use listwatch_schema::Path;
use listwatch_validation::formats::{IMMUTABLE, json, same};
use listwatch_validation::object_meta::validate_labels;
use listwatch_validation::{Errors, Object, child};

use super::claim_spec;
use crate::Kind;
use crate::defaults::Default::{Empty, If};
use crate::defaults::Defaults;
use listwatch_printers::NAME_AND_AGE;

pub(crate) static KIND: Kind = Kind {
    defaults: &DEFAULTS,
    validate,
    printer: &NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&CLAIM))]);
static CLAIM: Defaults = Defaults(&[("metadata", Empty), ("spec", If(&claim_spec::DEFAULTS))]);

fn validate(template: &Object, old: Option<&Object>, errors: &mut Errors) {
    let spec = child(template, "spec");
    let at = Path::root("spec");
    validate_labels(child(child(spec, "metadata"), "labels"), "spec.metadata.labels", errors);
    claim_spec::validate(child(spec, "spec"), &at.child("spec"), errors);
    if old.is_some_and(|old| !same(template.get("spec"), old.get("spec"))) {
        errors.invalid_value(&at, json(template.get("spec")), IMMUTABLE);
    }
}
