//! `MutatingWebhookConfiguration (admissionregistration.k8s.io/v1)`: mutatingwebhookconfigurations.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    unconditional_update: false,
    generation: true,
    categories: &["api-extensions"],
    defaults: &crate::defaults::table::MUTATING_WEBHOOKS,
    validate: crate::validate::webhooks::mutating,
    printer: &crate::printers::extension::WEBHOOKS,
    unenforced: Some(Unenforced { part: UnenforcedPart::Object, consequence: "its webhooks are not called" }),
    ..Kind::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
    )
};
