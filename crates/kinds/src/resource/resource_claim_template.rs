//! ResourceClaimTemplate (`resource.k8s.io/v1`): the template of the claims that are created for pods.
//!
//! Upstream: `pkg/registry/resource/resourceclaimtemplate/strategy.go`, `ValidateResourceClaimTemplate` in
//! `pkg/apis/resource/validation`.

use super::resource_claim::SPEC_DEFAULTS;
use crate::Kind;
use crate::defaults::Default::{Empty, If};
use crate::defaults::Defaults;
use crate::printers::NAME_AND_AGE;
use crate::validate::devices;

pub(crate) static KIND: Kind = Kind {
    defaults: &DEFAULTS,
    validate: devices::claim_template,
    printer: &NAME_AND_AGE,
    returns_deleted: true,
    ..Kind::namespaced("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
};

static DEFAULTS: Defaults = Defaults(&[("spec", If(&CLAIM))]);
static CLAIM: Defaults = Defaults(&[("metadata", Empty), ("spec", If(&SPEC_DEFAULTS))]);
