//! The files of `cases/`, compiled into the program.

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../cases/", $name)))),*]
    };
}

/// The files in the order of reports.
pub(super) const FILES: &[(&str, &str)] = files![
    "capabilities.yaml",
    "resources.yaml",
    "core.yaml",
    "versions.yaml",
    "paging.yaml",
    "watch.yaml",
    "bookmarks.yaml",
    "watch-list.yaml",
    "expiry.yaml",
    "selectors.yaml",
    "deletes.yaml",
    "patches.yaml",
    "apply.yaml",
    "tables.yaml",
    "yaml.yaml",
    "protobuf.yaml",
    "cbor.yaml",
    "transports.yaml",
    "crds.yaml",
    "ordering.yaml",
    "restart.yaml",
];
