//! MutatingWebhookConfiguration (`admissionregistration.k8s.io/v1`): webhooks that can change objects on admission.
//!
//! Source: `pkg/registry/admissionregistration/mutatingwebhookconfiguration`,
//! `ValidateMutatingWebhookConfiguration` in `pkg/apis/admissionregistration/validation`.

use super::match_rules::admission_kind;
use super::webhooks::{self, WEBHOOK_DEFAULTS, validate_webhooks};
use crate::Kind;
use crate::defaults::Default::{Each, Text};
use crate::defaults::Defaults;

pub(crate) static KIND: Kind = Kind {
    defaults: &DEFAULTS,
    validate: |configuration, old, errors| validate_webhooks(configuration, old, true, errors),
    printer: &webhooks::PRINTER,
    ..admission_kind("mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
};

static REINVOCATION_DEFAULTS: Defaults = Defaults(&[("reinvocationPolicy", Text("Never"))]);

static DEFAULTS: Defaults =
    Defaults(&[("webhooks", Each(&WEBHOOK_DEFAULTS)), ("webhooks", Each(&REINVOCATION_DEFAULTS))]);
