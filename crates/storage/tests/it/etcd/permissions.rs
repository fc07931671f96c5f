//! The permissions that an etcd user needs: readwrite on the prefix and on the compactor's key.

use super::gateway::Gateway;
use super::*;

/// Enables authentication; the user `listwatch` may read and write below `/registry/`.
async fn enable_auth(member: &Member) {
    let raw = Raw::connect(&member.url);
    raw.add_user("root", "secret").await;
    raw.add_user("listwatch", "secret").await;
    raw.allow("listwatch", "/registry/", "/registry0").await;
    raw.allow("listwatch", COMPACT_KEY, "").await;
    raw.enable_auth().await;
}

fn options_of(user: &str, url: &str) -> Etcd3Options {
    let mut options = patient_options([url]);
    options.user = Some((user.into(), "secret".into()));
    options
}

#[tokio::test]
async fn user_needs_only_the_prefix_except_for_compaction() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    enable_auth(&member).await;

    let mut options = options_of("listwatch", &member.url);
    let store = Etcd3::connect(options.clone()).await.expect("the permissions are enough to begin");
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;
    let first = store.create(&pod("a"), "{}".into(), Some(Duration::from_secs(3600))).await.unwrap();
    let updated = store.update(&pod("a"), first, "{}".into(), None).await.unwrap();
    let last = store.delete(&pod("a"), updated).await.unwrap();
    assert_eq!(follow(&mut watch, last).await.len(), 3);
    assert_eq!(list(&store, 0).await.items.len(), 0);
    assert_eq!(store.health().await, Ok(()));
    assert_eq!(store.stats().await.expect("statistics need nothing else").keys, Some(0));
    // Recent servers let only root compact.
    let compacted = store.compact(updated).await;
    println!("compaction without the role root: {compacted:?}");
    let refused = matches!(compacted, Err(ReadError::Fault(StoreFault::Denied(_))));
    assert!(refused || compacted.is_ok(), "what is refused is said: {compacted:?}");
    options.user = Some(("root".into(), "secret".into()));
    let root = Etcd3::connect(options.clone()).await.unwrap();
    assert_eq!(root.compact(updated).await, Ok(()));
    options.user = Some(("listwatch".into(), "secret".into()));

    // Outside of its prefix the user has no access, and connecting fails.
    options.prefix = "/elsewhere".to_owned();
    let refused = Etcd3::connect(options).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Denied { .. }), "{refused:?}");
}

/// etcd 3.4.42, 3.5.28 to 3.5.31 and 3.6.0 to 3.6.11 refuse `Maintenance.Status` to users without the
/// role `root`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_that_denies_its_status_serves_a_user_that_has_the_prefix() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    enable_auth(&member).await;
    let gateway = Gateway::start(&member.url).await;
    gateway.deny_status(true);

    let store = Etcd3::connect(options_of("listwatch", &gateway.url)).await.expect("the prefix is enough to begin");
    assert!(gateway.denied() > 0, "the version was asked for");
    assert!(!store.capabilities().progress_requests, "an unknown version is treated as the oldest one");
    let mut watch = open_watch(&store, pods(), Revision::ZERO).await;
    let first = store.create(&pod("a"), "{}".into(), None).await.unwrap();
    assert_eq!(follow(&mut watch, first).await.len(), 1);
    assert_eq!(list(&store, 0).await.items.len(), 1);
    assert_eq!(store.health().await, Ok(()));
    let stats = store.stats().await.expect("statistics need the prefix only");
    assert_eq!((&*stats.description, stats.keys, stats.disk_bytes), ("etcd", Some(1), None));

    // A user without access to the prefix is still rejected, and so is a wrong password.
    let mut elsewhere = options_of("listwatch", &gateway.url);
    elsewhere.prefix = "/elsewhere".to_owned();
    let mut wrong = options_of("listwatch", &gateway.url);
    wrong.user = Some(("listwatch".into(), "wrong".into()));
    for options in [elsewhere, wrong] {
        let refused = Etcd3::connect(options).await.unwrap_err();
        assert!(matches!(refused, ConnectError::Denied { .. }), "{refused:?}");
    }
}

/// The members of a cluster are replaced by a version that denies its status while watches run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_upgrade_to_an_etcd_that_denies_its_status_ends_no_watch() {
    let Some(binary) = binary() else { return };
    let member = Member::start_one(&binary, &[]);
    let gateway = Gateway::start(&member.url).await;
    let store = connect(&[&gateway.url]).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = open_watch(&store, pods(), start).await;
    let mut last = store.create(&pod("before"), "{}".into(), None).await.unwrap();
    let mut seen = follow(&mut watch, last).await;
    for round in 0..4 {
        gateway.deny_status(true);
        gateway.hang_up();
        last = certainly_create(&store, &format!("after{round}")).await;
        // More denials in a row than end a watch with a rejected credential.
        seen.extend(follow(&mut watch, last).await);
    }
    assert!(gateway.denied() >= 4, "each connection asks for the version, {} did", gateway.denied());
    assert_same(&seen, &truth(&member.url, start, last).await);
}

/// If the status is denied, the header of a read identifies the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_two_clusters_are_rejected_despite_denied_status() {
    let Some(binary) = binary() else { return };
    let members = ["one", "two"].map(|name| Member::start_one(&binary, &[&format!("--initial-cluster-token={name}")]));
    let mut gateways = Vec::new();
    for member in &members {
        gateways.push(Gateway::start(&member.url).await);
    }
    gateways.iter().for_each(|gateway| gateway.deny_status(true));
    let refused = rejected_endpoint(patient_options(gateways.iter().map(|gateway| &*gateway.url))).await;
    assert!(refused.to_string().contains("another etcd cluster answers"), "{refused}");
}
