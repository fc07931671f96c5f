//! Tests concurrent writers of one object: no write is lost or stored twice.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_patches_are_each_stored_exactly_once() {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 20;
    let world = Arc::new(World::new().await);
    // The running cache lags behind the store, so suggestions are stale.
    let maps = world.writer.backend().registry().find("", "v1", "configmaps").unwrap().clone();
    world.writer.backend().cacher(&maps).wait_ready().await.unwrap();
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"},"data":{}}"#).await.unwrap();
    let before = world.revision().await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let body = format!(r#"{{"data":{{"w{writer}-{round}":"x"}}}}"#);
                    world
                        .send(&patch(MAPS, "a", MERGE), &body)
                        .await
                        .expect("a patch without a version never conflicts");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let stored = world.stored("/configmaps/").await;
    assert_eq!(stored[0].matches(r#":"x""#).count(), WRITERS * ROUNDS, "a patch was lost");
    assert_eq!(world.revision().await - before, (WRITERS * ROUNDS) as u64, "a patch was written twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_several_concurrent_updates_of_one_version_succeeds() {
    let world = Arc::new(World::new().await);
    let maps = world.writer.backend().registry().find("", "v1", "configmaps").unwrap().clone();
    world.writer.backend().cacher(&maps).wait_ready().await.unwrap();
    world.send(&post(MAPS), r#"{"metadata":{"name":"a"}}"#).await.unwrap();
    for _ in 0..20 {
        let version = world.revision().await;
        let racers: Vec<_> = (0..4)
            .map(|racer| {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    let body = format!(
                        r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"data":{{"racer":"{racer}-{version}"}}}}"#
                    );
                    world.send(&put(MAPS, "a"), &body).await.map_err(|status| status.code)
                })
            })
            .collect();
        let mut won = 0;
        for racer in racers {
            match racer.await.unwrap() {
                Ok(_) => won += 1,
                Err(code) => assert_eq!(code, 409, "a lost race is a conflict"),
            }
        }
        assert_eq!(won, 1, "exactly one of several updates of the same version wins");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_created_concurrently_never_share_an_address() {
    let world = Arc::new(World::new().await);
    let creators: Vec<_> = (0..64)
        .map(|number| {
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                let body = format!(
                    r#"{{"metadata":{{"name":"s{number}"}},"spec":{{"type":"NodePort","ports":[{{"port":1}}]}}}}"#
                );
                world.send("POST /api/v1/namespaces/default/services", &body).await.unwrap();
            })
        })
        .collect();
    for creator in creators {
        creator.await.unwrap();
    }
    assert_eq!(world.stored("/ipaddresses/").await.len(), 64);
    assert_eq!(services::allocated_ports(&world).await.len(), 64);
}
