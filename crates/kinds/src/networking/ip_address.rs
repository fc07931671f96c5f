//! `IPAddress (networking.k8s.io/v1)`: ipaddresses.

use crate::Kind;
use listwatch_validation::names::NameRule;

pub(crate) static KIND: Kind = Kind {
    short_names: &["ip"],
    names: NameRule::Address,
    validate: crate::validate::networking::ip_address,
    printer: &crate::printers::network::IP_ADDRESS,
    ..Kind::cluster("networking.k8s.io", "v1", "ipaddresses", "IPAddress")
};
