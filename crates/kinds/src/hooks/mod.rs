//! Preparation and validation of certificate signing requests.

pub(crate) mod certificates;
