"""What the process tests share: broker starters, a raw protocol client, Java, kcat. Never imported by src."""
