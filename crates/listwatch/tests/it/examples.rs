//! Runs the examples that end by themselves.

// The example's `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/controller.rs"]
mod controller;

#[tokio::test]
async fn controller_example_mirrors_config_maps_as_secrets() {
    controller::run().await.expect("the example works");
}
