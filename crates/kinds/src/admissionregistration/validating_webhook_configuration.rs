//! ValidatingWebhookConfiguration (`admissionregistration.k8s.io/v1`): webhooks that can reject requests.
//!
//! Source: `pkg/registry/admissionregistration/validatingwebhookconfiguration`,
//! `ValidateValidatingWebhookConfiguration` in `pkg/apis/admissionregistration/validation`.

use super::match_rules::admission_kind;
use super::webhooks::{self, WEBHOOK_DEFAULTS, validate_webhooks};
use crate::Kind;
use crate::defaults::Default::Each;
use crate::defaults::Defaults;

pub(crate) static KIND: Kind = Kind {
    defaults: &DEFAULTS,
    validate: |configuration, old, errors| validate_webhooks(configuration, old, false, errors),
    printer: &webhooks::PRINTER,
    ..admission_kind("validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
};

static DEFAULTS: Defaults = Defaults(&[("webhooks", Each(&WEBHOOK_DEFAULTS))]);
