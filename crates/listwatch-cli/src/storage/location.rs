//! Parses and opens the locations of objects: an embedded store, an etcd or a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use listwatch_storage::Storage;
#[cfg(feature = "etcd3")]
use listwatch_storage::etcd3::Etcd3;
use listwatch_storage::transfer::{self, Source};
#[cfg(feature = "embedded")]
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage, OpenError};

use super::{EtcdFlags, Failure, StoreFlags};
#[cfg(feature = "etcd3")]
use crate::store::EtcdConnection;
#[cfg(feature = "embedded")]
use crate::store::embedded_path;

/// A source or target of objects.
#[derive(Clone, Debug)]
pub(super) enum Location {
    /// The embedded store of a data directory.
    Embedded(PathBuf),
    /// The endpoints of an etcd, and the flags of the connection.
    Etcd(Vec<String>, EtcdFlags),
    /// A file; `-` is standard input or output.
    File(PathBuf),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Embedded(dir) => write!(f, "the embedded store in {}", dir.display()),
            Location::Etcd(servers, flags) => write!(f, "etcd at {}, below {}", servers.join(", "), flags.etcd_prefix),
            Location::File(path) if is_stdio(path) => f.write_str("standard input"),
            Location::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

pub(super) fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Location {
    /// The store of `--data-dir` or `--etcd-servers`.
    pub(super) fn of_flags(flags: StoreFlags) -> Self {
        let servers: Vec<String> = flags.etcd_servers.into_iter().filter(|server| !server.is_empty()).collect();
        if servers.is_empty() { Location::Embedded(flags.data_dir) } else { Location::Etcd(servers, flags.etcd) }
    }

    /// Parses a URL, an existing file or a data directory.
    pub(super) fn of_text(text: &str, etcd: &EtcdFlags) -> Self {
        if text.contains("://") {
            let servers = text.split(',').map(str::trim).filter(|server| !server.is_empty());
            return Location::Etcd(servers.map(str::to_owned).collect(), etcd.clone());
        }
        let path = PathBuf::from(text);
        if is_stdio(&path) || path.is_file() { Location::File(path) } else { Location::Embedded(path) }
    }

    /// Opens an existing store.
    pub(super) async fn open(&self) -> Result<Opened, Failure> {
        match self {
            Location::Embedded(dir) => open_embedded(dir),
            Location::Etcd(servers, flags) => open_etcd(servers, flags).await,
            Location::File(path) => {
                Err(format!("{} is a file and no store; name a data directory or an etcd", path.display()).into())
            }
        }
    }
}

/// An open store.
pub(super) enum Opened {
    #[cfg(feature = "embedded")]
    Embedded(Arc<EmbeddedStorage>),
    #[cfg(feature = "etcd3")]
    Etcd(Arc<Etcd3>),
}

impl Opened {
    pub(super) fn source(&self) -> &dyn Source {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => &**store,
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => &**store,
        }
    }

    pub(super) fn storage(&self) -> Arc<dyn Storage> {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => store.clone(),
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => store.clone(),
        }
    }

    /// Closes the store: all writes become durable, and other processes can open the store.
    pub(super) async fn close(self) {
        match self {
            #[cfg(feature = "embedded")]
            Opened::Embedded(store) => store.close().await,
            #[cfg(feature = "etcd3")]
            Opened::Etcd(store) => store.close(),
        }
    }
}

#[cfg(feature = "embedded")]
fn open_embedded(data_dir: &Path) -> Result<Opened, Failure> {
    let path = embedded_path(data_dir);
    // `open` would create a store.
    if !EmbeddedStorage::exists(&path) {
        return Err(format!(
            "there is no store in {}; name the data directory of a server with --data-dir, or an etcd with --etcd-servers",
            path.display()
        )
        .into());
    }
    match EmbeddedStorage::open(&path, EmbeddedOptions::default()) {
        Ok(store) => Ok(Opened::Embedded(store)),
        Err(error @ OpenError::Locked { .. }) => {
            Err(format!("{error}. Only one process can open an embedded store: stop its server first").into())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(feature = "embedded"))]
fn open_embedded(_data_dir: &Path) -> Result<Opened, Failure> {
    Err("this build has no embedded store; name an etcd, or build it with --features embedded".into())
}

#[cfg(feature = "etcd3")]
async fn open_etcd(servers: &[String], flags: &EtcdFlags) -> Result<Opened, Failure> {
    let connection = EtcdConnection {
        servers: servers.to_vec(),
        prefix: flags.etcd_prefix.clone(),
        ca_file: flags.etcd_cafile.clone(),
        cert_file: flags.etcd_certfile.clone(),
        key_file: flags.etcd_keyfile.clone(),
        user: None,
    };
    Ok(Opened::Etcd(connection.connect().await?))
}

#[cfg(not(feature = "etcd3"))]
async fn open_etcd(_servers: &[String], _flags: &EtcdFlags) -> Result<Opened, Failure> {
    Err(crate::store::NO_ETCD.into())
}

/// Opens a file for one sequential read.
pub(super) fn open_file(path: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if is_stdio(path) {
        return Ok(Box::new(io::stdin()));
    }
    Ok(Box::new(named(path)?))
}

/// Opens a file for reads at any position. Standard input is copied to a temporary file first.
pub(super) fn open_seekable(path: &Path) -> Result<File, Failure> {
    if is_stdio(path) { Ok(transfer::spool(io::stdin().lock())?) } else { named(path) }
}

fn named(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}
