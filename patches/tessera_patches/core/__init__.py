"""What every other package needs: seams and their lock, SGLang's source as text, what a request carries."""
