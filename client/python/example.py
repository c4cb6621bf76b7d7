from tinygpt_client import Client

with Client() as client:
    sample = client.sample("ROMEO:", max_tokens=80, temperature=0)
    for text in sample:
        print(text, end="", flush=True)
    usage = sample.usage
    print(f"\n{sample.verdict}: {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached")
