//! The objects of the loads: [`Objects`], config maps of a given size in ten namespaces, or pods on
//! nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};

use crate::Outcome;
use crate::http::{Client, Extras, Http};
use crate::target::Target;

/// The number of namespaces of the objects, assigned round-robin.
const NAMESPACES: usize = 10;
/// The number of connections that create the objects.
const CREATORS: usize = 16;
/// The approximate size of an object without its payload in bytes. `--kib` is the size of the whole
/// object as written.
const METADATA_BYTES: usize = 250;

/// The selection of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Select {
    /// Everything: every watcher receives every event.
    All,
    /// One of ten namespaces.
    Namespace,
    /// One of ten values of a label.
    Label,
    /// One node per watcher: `spec.nodeName` of pods, like kubelets.
    Node,
    /// One object per watcher: `metadata.name`, like kubelets for mounted config maps.
    Name,
}

/// A kind of patch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patch {
    /// A JSON patch (RFC 6902).
    Json,
    /// A JSON merge patch (RFC 7386).
    Merge,
    /// A strategic merge patch.
    Strategic,
    /// A server-side apply of the whole object.
    Apply,
}

/// A set of objects with one selection and size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objects {
    pub(crate) count: usize,
    pub(crate) kib: usize,
    pub(crate) select: Select,
    /// The number of groups of watchers and of objects.
    pub(crate) groups: usize,
}

impl Objects {
    /// The path of the collection.
    pub(crate) fn collection(&self) -> &'static str {
        if self.select == Select::Node { "/api/v1/pods" } else { "/api/v1/configmaps" }
    }

    pub(crate) fn group(&self, object: usize) -> usize {
        object % self.groups
    }

    /// The path and query of a group's watchers, without `watch=true`.
    pub(crate) fn selection(&self, group: usize) -> String {
        match self.select {
            Select::All => format!("{}?", self.collection()),
            Select::Namespace => format!("/api/v1/namespaces/load-{}/configmaps?", group % NAMESPACES),
            Select::Label => format!("{}?labelSelector=group%3Dg{group}&", self.collection()),
            Select::Node => format!("{}?fieldSelector=spec.nodeName%3Dnode-{group}&", self.collection()),
            Select::Name => format!(
                "/api/v1/namespaces/{}/configmaps?fieldSelector=metadata.name%3D{}&",
                namespace(group),
                self.name(group)
            ),
        }
    }

    fn name(&self, object: usize) -> String {
        // Rows with other labels have other objects.
        format!("load-{}k-{}-{object:06}", self.kib, self.groups)
    }

    fn items(&self, object: usize) -> String {
        let kind = if self.select == Select::Node { "pods" } else { "configmaps" };
        format!("/api/v1/namespaces/{}/{kind}", namespace(object))
    }

    fn path(&self, object: usize) -> String {
        format!("{}/{}", self.items(object), self.name(object))
    }

    /// The payload: hexadecimal digits that differ for each object and turn, so that compression
    /// has work to do.
    fn payload(&self, object: usize, turn: u64) -> String {
        let bytes = (self.kib * 1024).saturating_sub(METADATA_BYTES);
        let seed = turn.rotate_left(32) ^ object as u64;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut text = String::with_capacity(bytes);
        while text.len() < bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push(char::from(b"0123456789abcdef"[(state >> 60) as usize]));
        }
        text
    }

    fn body(&self, object: usize, turn: u64) -> Bytes {
        let (name, group, payload) = (self.name(object), self.group(object), self.payload(object, turn));
        let metadata = format!(
            "\"name\":\"{name}\",\"namespace\":\"{}\",\"labels\":{{\"app\":\"load\",\"group\":\"g{group}\"}}",
            namespace(object)
        );
        Bytes::from(if self.select == Select::Node {
            format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{{metadata},\"annotations\":{{\"payload\":\"{payload}\"}}}},\
                 \"spec\":{{\"nodeName\":\"node-{group}\",\"automountServiceAccountToken\":false,\
                 \"containers\":[{{\"name\":\"main\",\"image\":\"load\"}}]}}}}"
            )
        } else {
            format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{{metadata}}},\"data\":{{\"turn\":\"{turn}\",\"payload\":\"{payload}\"}}}}"
            )
        })
    }

    /// Changes an object and returns the response with its new revision. Config maps are replaced;
    /// pods are patched in a mutable field.
    pub(crate) async fn update(&self, client: &mut Client<'_>, object: usize, turn: u64) -> Outcome<Bytes> {
        let group = Some(self.group(object));
        if self.select == Select::Node {
            let body =
                format!("{{\"metadata\":{{\"annotations\":{{\"payload\":\"{}\"}}}}}}", self.payload(object, turn));
            let content_type = Some("application/merge-patch+json");
            let extras = Extras { content_type, group, body: body.into(), ..Extras::default() };
            return client.expect(Method::PATCH, &self.path(object), extras).await;
        }
        let extras = Extras { group, body: self.body(object, turn), ..Extras::default() };
        client.expect(Method::PUT, &self.path(object), extras).await
    }

    /// Changes an object by a patch of this kind: the payload and the turn of a config map.
    pub(crate) async fn patch(
        &self,
        client: &mut Client<'_>,
        object: usize,
        turn: u64,
        patch: Patch,
    ) -> Outcome<Bytes> {
        let payload = self.payload(object, turn);
        let (content_type, query, body) = match patch {
            Patch::Json => (
                "application/json-patch+json",
                "",
                format!(
                    "[{{\"op\":\"replace\",\"path\":\"/data/turn\",\"value\":\"{turn}\"}},\
                     {{\"op\":\"replace\",\"path\":\"/data/payload\",\"value\":\"{payload}\"}}]"
                )
                .into(),
            ),
            Patch::Merge | Patch::Strategic => (
                if patch == Patch::Merge {
                    "application/merge-patch+json"
                } else {
                    "application/strategic-merge-patch+json"
                },
                "",
                format!("{{\"data\":{{\"turn\":\"{turn}\",\"payload\":\"{payload}\"}}}}").into(),
            ),
            // The manager of the update owns the fields until the first apply takes them over.
            Patch::Apply => {
                ("application/apply-patch+yaml", "?fieldManager=load-apply&force=true", self.body(object, turn))
            }
        };
        let group = Some(self.group(object));
        let extras = Extras { content_type: Some(content_type), group, body, ..Extras::default() };
        client.expect(Method::PATCH, &format!("{}{query}", self.path(object)), extras).await
    }

    /// Creates a new object.
    pub(crate) async fn create(&self, client: &mut Client<'_>, object: usize) -> Outcome<Bytes> {
        let extras = Extras { group: Some(self.group(object)), body: self.body(object, 0), ..Extras::default() };
        client.expect(Method::POST, &self.items(object), extras).await
    }

    pub(crate) async fn get(&self, client: &mut Client<'_>, object: usize) -> Outcome<Bytes> {
        client.expect(Method::GET, &self.path(object), Extras::default()).await
    }

    pub(crate) async fn delete(&self, client: &mut Client<'_>, object: usize) -> Outcome<Bytes> {
        client.expect(Method::DELETE, &self.path(object), Extras::default()).await
    }

    /// Creates the namespaces, and the objects that pods require.
    pub(crate) async fn make_namespaces(&self, target: &Target) -> Outcome<()> {
        let mut client = Client::connect(target, Http::H1).await?;
        for index in 0..NAMESPACES {
            let name = namespace(index);
            let body = format!("{{\"apiVersion\":\"v1\",\"kind\":\"Namespace\",\"metadata\":{{\"name\":\"{name}\"}}}}");
            create_if_absent(&mut client, "/api/v1/namespaces", body.into()).await?;
            if self.select == Select::Node {
                // Without controllers nothing else creates it.
                let body = "{\"apiVersion\":\"v1\",\"kind\":\"ServiceAccount\",\"metadata\":{\"name\":\"default\"}}";
                create_if_absent(&mut client, &format!("/api/v1/namespaces/{name}/serviceaccounts"), body.into())
                    .await?;
            }
        }
        Ok(())
    }

    /// Creates the missing objects.
    pub(crate) async fn make(&self, target: &Arc<Target>) -> Outcome<()> {
        if target.floor {
            return Ok(());
        }
        self.make_namespaces(target).await?;
        let next = Arc::new(AtomicUsize::new(0));
        let mut creators = tokio::task::JoinSet::new();
        for _ in 0..CREATORS {
            let (objects, target, next) = (*self, target.clone(), next.clone());
            creators.spawn(async move {
                let mut client = Client::connect(&target, Http::H1).await?;
                loop {
                    let object = next.fetch_add(1, Ordering::Relaxed);
                    if object >= objects.count {
                        return Outcome::Ok(());
                    }
                    create_if_absent(&mut client, &objects.items(object), objects.body(object, 0)).await?;
                }
            });
        }
        while let Some(created) = creators.join_next().await {
            created??;
        }
        Ok(())
    }
}

fn namespace(object: usize) -> String {
    format!("load-{}", object % NAMESPACES)
}

/// Creates an object unless it exists.
pub(crate) async fn create_if_absent(client: &mut Client<'_>, path: &str, body: Bytes) -> Outcome<()> {
    let (status, answer) = client.request(Method::POST, path, Extras { body, ..Extras::default() }).await?;
    if status.is_success() || status == StatusCode::CONFLICT {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer[..answer.len().min(400)]).into_owned();
    Err(format!("POST {path}: {status}: {text}").into())
}
