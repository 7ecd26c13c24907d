"""Every route of the OpenAPI document, asked by everybody: whose answer is it?"""
