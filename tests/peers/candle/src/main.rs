//! Tokens per second of candle's quantised Llama: `tinygpt-peers-candle MODEL.gguf PROMPT GENERATED`.
//!
//! Prints those of a prefill of so many tokens, once run before, and of a decode behind one token.
//! `RAYON_NUM_THREADS` says how many threads.

use std::fs::File;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Result, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, prompt, generated] = &arguments[..] else { panic!("MODEL PROMPT GENERATED") };
    let count = |text: &String| text.parse::<usize>().expect("a number of tokens");
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let ids: Vec<u32> = (0..count(prompt)).map(|i| 1000 + (i * 7919 % 20_011) as u32).collect();
    run(&mut model, &ids, 0)?;
    println!("{}", rate(ids.len(), || run(&mut model, &ids, 0))?);
    run(&mut model, &ids[..1], 0)?;
    let decode = || (1..=count(generated)).try_for_each(|at| run(&mut model, &ids[at..][..1], at));
    println!("{}", rate(count(generated), decode)?);
    Ok(())
}

fn run(model: &mut ModelWeights, ids: &[u32], position: usize) -> Result<()> {
    let logits = model.forward(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?, position)?;
    // Whoever samples reads them.
    logits.flatten_all()?.to_vec1::<f32>().map(|_| ())
}

fn rate(tokens: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(tokens as f64 / started.elapsed().as_secs_f64())
}
