//! An API server inside a process, for clients in other processes. The server needs no certificate
//! and no token, and writes only the kubeconfig to disk. A client in the same process needs no
//! port: `kube::Client::new(server.service(), "default")`. `cargo xtask e2e --kube-rs` runs
//! kube-rs' examples against this server.
//!
//! ```sh
//! cargo run -p listwatch --example in_process -- kubeconfig &
//! KUBECONFIG=kubeconfig kubectl get namespaces
//! ```

use std::error::Error;
use std::net::TcpListener;

use listwatch::apiserver::ApiServer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("usage: in_process KUBECONFIG")?;
    let server = ApiServer::builder().build().await?;
    let serving = server.serve_plain(TcpListener::bind("127.0.0.1:0")?)?;
    let url = format!("http://{}", serving.address());
    std::fs::write(&file, kubeconfig(&url))?;
    println!("serves {url}, as {file} says");
    tokio::signal::ctrl_c().await?;
    server.shutdown();
    serving.shutdown().await;
    Ok(())
}

/// A kubeconfig for a server without credentials.
fn kubeconfig(url: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: in-process, cluster: {{server: \"{url}\"}}}}]
users: [{{name: anybody, user: {{}}}}]
contexts: [{{name: in-process, context: {{cluster: in-process, user: anybody}}}}]
current-context: in-process
"
    )
}
