"""Guards against requests that would end SGLang's scheduler, or damage another request's answer."""
