//! Opens the stores that the flags select.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use listwatch_apiserver::stored_form::{CONFIG_BYTES_MAX, Encryption, StorageMediaType, StoredForm};
#[cfg(feature = "etcd3")]
use listwatch_storage::etcd3::{Etcd3, Etcd3Options};
use listwatch_storage::transfer::Source;
#[cfg(feature = "embedded")]
use listwatch_storage::{EmbeddedOptions, EmbeddedStorage};
use listwatch_storage::{MemoryStorage, Storage};

type Failure = Box<dyn std::error::Error>;

/// The endpoints of an etcd cluster, and the credentials of this server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EtcdConnection {
    /// The endpoints.
    pub(crate) servers: Vec<String>,
    /// The prefix of all keys in etcd.
    pub(crate) prefix: String,
    /// The CA certificates that verify etcd's certificate. If absent, the system's certificates are used.
    pub(crate) ca_file: Option<PathBuf>,
    /// The client certificate.
    pub(crate) cert_file: Option<PathBuf>,
    /// The key of the client certificate.
    pub(crate) key_file: Option<PathBuf>,
    /// The user name, and the file with the password.
    pub(crate) user: Option<(String, PathBuf)>,
}

impl EtcdConnection {
    /// Connects to etcd.
    ///
    /// # Errors
    /// A file cannot be read, or no member responds.
    #[cfg(feature = "etcd3")]
    pub(crate) async fn connect(&self) -> Result<Arc<Etcd3>, Failure> {
        let mut options = Etcd3Options::new(self.servers.iter().cloned());
        options.prefix.clone_from(&self.prefix);
        options.ca_file.clone_from(&self.ca_file);
        options.cert_file.clone_from(&self.cert_file);
        options.key_file.clone_from(&self.key_file);
        if let Some((user, file)) = &self.user {
            let password = std::fs::read_to_string(file)
                .map_err(|error| format!("cannot read the password file {}: {error}", file.display()))?;
            options.user = Some((user.clone(), password.trim_end_matches(['\r', '\n']).to_owned()));
        }
        Ok(Etcd3::connect(options).await?)
    }
}

/// The prefix that authenticates encrypted values in stores without a prefix, so that a copy in etcd stays readable.
const KEY_PREFIX: &str = "/registry";

/// Reads the encryption of an open store from its configuration file, and returns the form of its values.
///
/// # Errors
/// The file cannot be read, or its configuration is invalid or not supported.
pub(crate) fn stored_form(
    store: &OpenStore,
    encryption: Option<&Path>,
    media_type: StorageMediaType,
) -> Result<StoredForm, Failure> {
    let encryption = match encryption {
        Some(file) => {
            let name = file.display().to_string();
            // One byte above the limit is enough to refuse a larger file.
            let mut text = Vec::new();
            std::fs::File::open(file)
                .and_then(|file| file.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut text))
                .map_err(|error| {
                    format!(
                        "error while parsing file: error while loading file: error reading encryption provider \
                         configuration file {name:?}: {error}"
                    )
                })?;
            Some(Encryption::parse(&name, &text)?)
        }
        None => None,
    };
    Ok(StoredForm::new(encryption, media_type, &store.key_prefix))
}

/// Parses the value of `--storage-media-type`.
///
/// # Errors
/// Another media type; the text is kube-apiserver's, without the types that this server does not store.
pub(crate) fn parse_media_type(text: &str) -> Result<StorageMediaType, String> {
    match text {
        "application/json" => Ok(StorageMediaType::Json),
        "application/vnd.kubernetes.protobuf" => Ok(StorageMediaType::Protobuf),
        other => Err(format!(
            "--storage-media-type {other:?} invalid, allowed values: application/json, \
             application/vnd.kubernetes.protobuf"
        )),
    }
}

/// An open store, with its description.
pub(crate) struct OpenStore {
    /// The store that the API server uses.
    pub(crate) storage: Arc<dyn Storage>,
    /// The same store for snapshots, if it is embedded.
    pub(crate) embedded: Option<Arc<dyn Source>>,
    /// The description of the store in the banner and the log.
    pub(crate) description: String,
    /// The prefix of all keys in etcd; `/registry` for other stores. The prefix authenticates encrypted values.
    pub(crate) key_prefix: String,
}

/// Opens an etcd store, and compacts its history at the given interval.
///
/// # Errors
/// No member responds, a file cannot be read, or this build has no etcd support.
#[cfg(feature = "etcd3")]
pub(crate) async fn open_etcd(etcd: &EtcdConnection, compaction: Option<Duration>) -> Result<OpenStore, Failure> {
    let store = etcd.connect().await?;
    if let Some(interval) = compaction {
        store.start_compactor(interval);
    }
    let version = store.stats().await.map_or_else(|_| "etcd".to_owned(), |stats| stats.description);
    let description = format!("{version} at {}, below {}", etcd.servers.join(", "), etcd.prefix);
    let key_prefix = store.prefix().to_owned();
    Ok(OpenStore { storage: store, embedded: None, description, key_prefix })
}

#[cfg(not(feature = "etcd3"))]
pub(crate) async fn open_etcd(_etcd: &EtcdConnection, _compaction: Option<Duration>) -> Result<OpenStore, Failure> {
    Err(NO_ETCD.into())
}

/// The error of a build without etcd support.
#[cfg(not(feature = "etcd3"))]
pub(crate) const NO_ETCD: &str = "this build has no etcd support; build it with --features etcd3";

/// The folder of the embedded store in a data directory.
#[cfg(feature = "embedded")]
pub(crate) fn embedded_path(data_dir: &Path) -> PathBuf {
    data_dir.join("store")
}

/// Opens the embedded store of a data directory. Creates the store if it is missing.
///
/// # Errors
/// The store is damaged or open in another process, or this build has no embedded store.
#[cfg(feature = "embedded")]
pub(crate) fn open_embedded(data_dir: &Path) -> Result<OpenStore, Failure> {
    crate::relocation::check_not_moved(data_dir)?;
    let store = EmbeddedStorage::open(embedded_path(data_dir), EmbeddedOptions::default())?;
    let description = format!("embedded, durable, in {}", data_dir.display());
    Ok(OpenStore { storage: store.clone(), embedded: Some(store), description, key_prefix: KEY_PREFIX.to_owned() })
}

#[cfg(not(feature = "embedded"))]
pub(crate) fn open_embedded(_data_dir: &Path) -> Result<OpenStore, Failure> {
    Err("this build has no embedded store; name an etcd with --etcd-servers, or build it with --features embedded"
        .into())
}

/// Opens a store in memory.
pub(crate) fn open_memory() -> OpenStore {
    let description = "memory (gone when the server ends)".to_owned();
    OpenStore { storage: MemoryStorage::new(), embedded: None, description, key_prefix: KEY_PREFIX.to_owned() }
}

/// Creates a data directory that only its owner can read, because it contains keys and Secrets.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn create_data_dir(data_dir: &Path) -> Result<(), Failure> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(data_dir)
        .map_err(|error| format!("cannot create the data directory {}: {error}", data_dir.display()).into())
}
