//! A server on a free port, and the [`Environment`] through which cases compact and restart it.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use listwatch_apiserver::pki::Pki;
use listwatch_apiserver::{ApiServer, Auth, Serving};
use listwatch_client::Config;
use listwatch_conformance::{ActionFuture, Environment, HttpVersion, Report, RunOptions, Suite, Target, judge};
use listwatch_meta::Revision;
use listwatch_storage::Storage;

/// The time limit for a port to become free again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server over a store that survives restarts of the server.
pub(crate) struct World {
    storage: Arc<dyn Storage>,
    pki: Pki,
    port: u16,
    running: Mutex<Option<(ApiServer, Serving)>>,
}

impl World {
    pub(crate) async fn new(storage: Arc<dyn Storage>) -> Arc<Self> {
        let pki = Pki::in_memory(&[]).expect("certificates");
        let port = listwatch_test_ports::free_port().expect("a free port");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("nothing else listens there");
        let world = World { storage, pki, port, running: Mutex::new(None) };
        let running = world.start(listener).await.expect("a server");
        *world.running.lock().expect("no panic") = Some(running);
        Arc::new(world)
    }

    async fn start(&self, listener: TcpListener) -> Result<(ApiServer, Serving), String> {
        let auth = Auth::Token(self.pki.token().to_owned());
        let builder = ApiServer::builder().storage(self.storage.clone()).auth(auth).cbor(true);
        let server = builder.build().await.map_err(|error| error.to_string())?;
        let serving = server.serve(listener, &self.pki).map_err(|error| error.to_string())?;
        Ok((server, serving))
    }

    fn config(&self) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        self.pki.write_kubeconfig(&path, &format!("https://127.0.0.1:{}", self.port)).expect("written");
        Config::load(Some(&path), None).expect("a configuration")
    }

    pub(crate) async fn judge(self: &Arc<Self>, version: HttpVersion, options: &RunOptions) -> Report {
        let suite = Suite::bundled().expect("valid cases");
        let target = Target::new(self.config(), version).await.expect("a target");
        judge(&suite, target, self.clone(), options, |_| {}).await.expect("a report")
    }
}

impl Environment for World {
    fn compact<'a>(&'a self, resource_version: &'a str) -> Option<ActionFuture<'a>> {
        Some(Box::pin(async move {
            let revision = resource_version.parse().map_err(|_| format!("{resource_version} is no revision"))?;
            self.storage.compact(Revision::new(revision)).await.map_err(|error| error.to_string())
        }))
    }

    fn restart(&self) -> Option<ActionFuture<'_>> {
        Some(Box::pin(async move {
            let running = self.running.lock().expect("no panic").take();
            if let Some((server, serving)) = running {
                server.shutdown();
                serving.shutdown().await;
            }
            let begun = Instant::now();
            let listener = loop {
                match TcpListener::bind(("127.0.0.1", self.port)) {
                    Ok(listener) => break listener,
                    Err(error) if begun.elapsed() > PATIENCE => return Err(error.to_string()),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            let started = self.start(listener).await?;
            *self.running.lock().expect("no panic") = Some(started);
            Ok(())
        }))
    }
}
