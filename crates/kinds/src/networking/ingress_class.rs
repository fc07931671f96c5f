//! `IngressClass (networking.k8s.io/v1)`: ingressclasses.

use crate::{Kind, Unenforced, UnenforcedPart};

pub(crate) static KIND: Kind = Kind {
    generation: true,
    defaults: &crate::defaults::table::INGRESS_CLASS,
    validate: crate::validate::networking::ingress_class,
    printer: &crate::printers::network::INGRESS_CLASS,
    unenforced: Some(Unenforced {
        part: UnenforcedPart::Annotation("ingressclass.kubernetes.io/is-default-class"),
        consequence: "ingresses without a class do not get it as their default",
    }),
    ..Kind::cluster("networking.k8s.io", "v1", "ingressclasses", "IngressClass")
};
