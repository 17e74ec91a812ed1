//! scratch
use sandglass::cri::Cri;
use sandglass::demo::rig::*;
use sandglass::demo::scenarios;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn scratch() {
    let rig = Rig::start(&RigOptions::default()).unwrap();
    scenarios::wait_for_pause(&rig).await.unwrap();
    let cri = Arc::new(
        Cri::connect(&rig.cri_socket().to_string_lossy(), Duration::from_secs(10))
            .await
            .unwrap(),
    );
    let mut all = Vec::new();
    for step in scenarios::steps() {
        for r in scenarios::make(&cri, &rig, step).await {
            println!(
                "{} {:?} {} ms begin {} end {} {:?}",
                r.pod.identity.name,
                r.pod.network,
                r.run.duration_ns() as f64 / 1e6,
                r.run.begin,
                r.run.end,
                r.outcome
            );
            if let Some((a, b)) = r.slow_clock {
                println!("   slow clock {}", b - a);
            }
            if let Ok(id) = &r.outcome {
                let s = cri.pod_sandbox_status(&id.0, false).await.unwrap();
                println!("   {:?}", s.status.unwrap().network);
            }
            all.push(r);
        }
    }
    for r in &mut all {
        if scenarios::DELETED.contains(&r.pod.identity.name.as_str()) {
            let b = scenarios::now();
            scenarios::delete(&cri, r).await.unwrap();
            println!(
                "deleted {} stop {:?} ms all {}",
                r.pod.identity.name,
                r.stop.map(|s| s.duration_ns() as f64 / 1e6),
                scenarios::now().since(b) as f64 / 1e6
            );
        }
    }
    let m = rig.containerd_metrics().unwrap();
    for l in m
        .lines()
        .filter(|l| l.contains("network_plugin") && !l.contains("bucket") && !l.starts_with("#"))
    {
        println!("{l}");
    }
    if std::env::var("KEEP").is_ok() {
        std::thread::sleep(Duration::from_secs(20));
    }
    std::fs::write("/tmp/d/log", rig.log()).unwrap();
    let t = std::time::Instant::now();
    rig.stop().unwrap();
    println!("stop {:?}", t.elapsed());
}
