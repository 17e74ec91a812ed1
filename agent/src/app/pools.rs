//! Watches the node's pools of IP addresses: reads host-local's stores and asks the runtime which containers exist.
//!
//! Started by the app on its asynchronous runtime; files are read on a blocking thread of that. Does not: touch the
//! pipeline, or keep a runtime busy: one list every quarter of a minute, and only while addresses are in use.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::cni_conf::{CniConf, CniOptions};
use crate::cri::{Cri, RuntimeChoice};
use crate::ip_pools::IpPools;
use crate::ip_pools::store::Stores;

/// The watch. Dropping it ends it.
#[derive(Debug)]
pub struct PoolWatch(JoinHandle<()>);

impl Drop for PoolWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PoolWatch {
    /// Starts watching. Panics outside of a tokio runtime. `timeout` holds for each call to the runtime.
    pub fn start(options: CniOptions, runtime: RuntimeChoice, timeout: Duration, pools: IpPools) -> PoolWatch {
        let known = ContainerList {
            runtime,
            timeout,
            root: options.root.clone(),
            cri: None,
        };
        PoolWatch(tokio::spawn(watch(options, known, pools)))
    }
}

async fn watch(options: CniOptions, mut containers: ContainerList, pools: IpPools) {
    let mut stores = Stores::default();
    loop {
        let asks = stores.has_addresses();
        let known = match asks {
            true => containers.list().await,
            false => Err("the runtime was not asked yet".to_owned()),
        };
        let options = options.clone();
        let read = tokio::task::spawn_blocking(move || {
            let conf = CniConf::read(&options);
            let known = known.as_ref().map_err(String::as_str);
            let read = stores.read(&conf.pools(), known, &options.root);
            (stores, read)
        });
        // A panic there has been logged.
        let Ok((back, read)) = read.await else { return };
        stores = back;
        pools.report(read);
        // The first addresses of a store: whose they are is asked at once.
        let pause = if stores.has_addresses() && !asks { FIRST } else { PERIOD };
        tokio::time::sleep(pause).await;
    }
}

/// Asks the runtime, over one connection that is made when it is needed.
struct ContainerList {
    runtime: RuntimeChoice,
    timeout: Duration,
    root: PathBuf,
    cri: Option<Cri>,
}

impl ContainerList {
    /// Ids of all sandboxes; the reason, where they cannot be had.
    async fn list(&mut self) -> Result<BTreeSet<String>, String> {
        if self.cri.is_none() {
            let endpoint = self.runtime.endpoint(&self.root).ok_or("no CRI socket is known")?;
            let cri = Cri::connect_to(endpoint, self.timeout).await;
            self.cri = Some(cri.map_err(|error| error.to_string())?);
        }
        let Some(cri) = &self.cri else {
            return Err("no CRI socket is known".to_owned());
        };
        let listed = cri.list_pod_sandbox().await.map_err(|error| error.to_string())?;
        Ok(listed.into_iter().map(|sandbox| sandbox.id).collect())
    }
}

/// How often the stores are read. A pool runs dry within seconds when a node gets many pods at once, and over days when
/// addresses leak.
const PERIOD: Duration = Duration::from_secs(15);
/// The pause before the runtime is asked for the first time.
const FIRST: Duration = Duration::from_secs(1);
