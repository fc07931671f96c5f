//! MutatingWebhookConfiguration (`admissionregistration.k8s.io/v1`): webhooks that can change objects on admission.
//!
//! Upstream: `pkg/registry/admissionregistration/mutatingwebhookconfiguration`,
//! `ValidateMutatingWebhookConfiguration` in `pkg/apis/admissionregistration/validation`.

use super::webhooks::{self, WEBHOOK_DEFAULTS, validate_webhooks};
use crate::defaults::Default::{Each, Text};
use crate::defaults::Defaults;
use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    defaults: &DEFAULTS,
    validate: |configuration, old, errors| validate_webhooks(configuration, old, true, errors),
    printer: &webhooks::PRINTER,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its webhooks are not called" }),
    ..Kind::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    )
};

static REINVOCATION_DEFAULTS: Defaults = Defaults(&[("reinvocationPolicy", Text("Never"))]);

static DEFAULTS: Defaults =
    Defaults(&[("webhooks", Each(&WEBHOOK_DEFAULTS)), ("webhooks", Each(&REINVOCATION_DEFAULTS))]);
